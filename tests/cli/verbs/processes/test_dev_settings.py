"""`refold dev`: what it asks of the server, and what it says a second terminal needs. No server is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shell

SERVER = """#!/bin/sh
echo "asked: $*"
exit 7
"""


@pytest.fixture
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `temporal` that says how it was called, and ends."""
    (tmp_path / "temporal").write_text(SERVER)
    (tmp_path / "temporal").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize(
    ("options", "setting", "asked"),
    [([], "", "default"), ([], "team", "team"), (["--namespace", "mine"], "team", "mine")],
    ids=["usual", "setting", "option"],
)
def test_the_namespace_is_the_one_that_other_commands_use(
    options: list[str], setting: str, asked: str, refold: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    By TEMPORAL_NAMESPACE, unless an option says otherwise.
    """
    monkeypatch.setenv("TEMPORAL_NAMESPACE", setting)

    assert f" --namespace {asked} " in refold("dev", *options).err
