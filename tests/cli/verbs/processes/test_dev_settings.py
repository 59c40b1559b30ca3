"""`refold dev`: what it asks of the server, and what it says a second terminal needs. No server is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refold.cli.verbs.processes.dev import exports, first_start, grace, what_is_left
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[4]

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


@pytest.mark.parametrize(("setting", "seconds"), [("", 5.0), ("12", 12.0), ("0", 0.0)])
def test_the_worker_has_the_grace_of_the_setting(setting: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    As a worker without `refold dev` has; without a setting it is short, so that Ctrl-C ends a trial soon.
    """
    monkeypatch.setenv("REFOLD_GRACE", setting)

    assert grace() == seconds


def test_a_grace_that_is_none_starts_nothing(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The error names the setting, before a server is started.
    """
    monkeypatch.setenv("REFOLD_GRACE", "soon")
    done = refold("dev")

    assert (done.exit, "REFOLD_GRACE" in done.err, "'soon'" in done.err) == (2, True, True)


def test_a_signal_stops_it_while_the_server_starts(tmp_path: Path) -> None:
    """
    A server that does not answer yet is stopped, and nothing has failed.
    """
    os.mkfifo(tmp_path / "begun")
    (tmp_path / "temporal").write_text("#!/bin/sh\necho $$ > begun\nexec sleep 1000\n")
    (tmp_path / "temporal").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "refold.cli", "dev"],
        cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as dev:  # fmt: skip
        server = int((tmp_path / "begun").read_text())
        dev.send_signal(signal.SIGTERM)
        out, err = dev.communicate(timeout=250)

    assert (dev.returncode, out, err) == (0, "", "")
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which nothing is set."""
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("REFOLD_TASK_QUEUE", raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    ("settings", "server", "said"),
    [
        ({}, ("127.0.0.1:7233", "default", "refold"), []),
        (
            {},
            ("127.0.0.1:50321", "team a", "q2"),
            [
                "export TEMPORAL_ADDRESS=127.0.0.1:50321",
                "export TEMPORAL_NAMESPACE='team a'",
                "export REFOLD_TASK_QUEUE=q2",
            ],
        ),
        ({"TEMPORAL_NAMESPACE": "team"}, ("127.0.0.1:7233", "team", "refold"), ["export TEMPORAL_NAMESPACE=team"]),
        (
            {"TEMPORAL_ADDRESS": "eu.api.temporal.io:7233", "TEMPORAL_API_KEY": "key"},
            ("127.0.0.1:7233", "default", "refold"),
            ["export TEMPORAL_ADDRESS=127.0.0.1:7233", "export TEMPORAL_TLS=false"],
        ),
    ],
    ids=["usual", "everything else", "set here", "set to another server"],
)
def test_a_second_terminal_is_told_what_it_lacks(
    settings: dict[str, str], server: tuple[str, str, str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Address, namespace and task queue where a plain command would use others, or might.
    """
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    assert exports(*server) == said


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, 'refold start tally "Hello"'),
        ({"tally": []}, "refold start tally --data JSON"),
        ({"tally": ["a", "b?"]}, "refold start tally a=…"),
        ({"tally": ["a?", "b?"]}, "refold start tally a=…"),
    ],
    ids=["text", "no fields", "fields", "no required fields"],
)
def test_the_first_command_has_something_to_send(inputs: dict[str, list[str]], said: str) -> None:
    """
    A message must have a content, whatever the skill takes.
    """
    assert first_start({"skills": ["tally"], "inputs": inputs}) == said


def test_the_way_to_go_on_is_quoted() -> None:
    """
    A path may have spaces.
    """
    assert "`refold dev --db 'my state.db'` goes on" in what_is_left(Path("my state.db"))
