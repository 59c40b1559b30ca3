"""`refold schedule`: what it refuses before a server is asked."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


@pytest.mark.parametrize("verb", [["list"], ["show", "x"], ["pause", "x"], ["run", "x"], ["delete", "x"]])
def test_only_a_temporal_server_has_schedules(refold: Shell, verb: list[str]) -> None:
    """
    An engine in memory has no clock.
    """
    done = refold("schedule", *verb)

    assert done.exit == 2
    assert "only a Temporal server has schedules" in done.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--overlap", "sometimes"], "--overlap takes skip, queue-one, queue-all, cancel, allow, not 'sometimes'"),
        (["--every", "soon"], "'soon' is no length of time"),
        (["--every", "1000000d"], "'1000000d' is too long; the longest time is 999999d"),
    ],
)
def test_a_wrong_word_is_named(refold: Shell, options: list[str], why: str) -> None:
    """
    With the words that are known.
    """
    done = refold("schedule", "create", "x", "hello", "hi", *options)

    assert done.exit == 2
    assert why in done.err
