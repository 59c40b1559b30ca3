"""`refold serve`: what it does not begin with."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_others_are_not_let_in_by_accident(host: str, refold: Shell) -> None:
    """
    An address that others reach takes a way to tell them apart, or a word that says there is none.
    """
    done = refold("serve", "--host", host, "--json")

    assert done.exit == 2
    assert "REFOLD_A2A_API_KEYS" in done.error["message"]


@pytest.mark.parametrize(
    ("name", "value"), [("REFOLD_A2A_API_KEYS", "no-name"), ("REFOLD_A2A_RATE", "often"), ("REFOLD_A2A_MAX_PARTS", "0")]
)
def test_a_setting_that_cannot_be_is_named(
    name: str, value: str, refold: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Before anything listens.
    """
    monkeypatch.setenv(name, value)
    done = refold("serve", "--json")

    assert done.exit == 2
    assert name in done.error["message"]
