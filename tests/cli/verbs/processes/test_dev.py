"""`refold dev` for real: a server, a worker, and the command line beside them, as processes."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from refold.cli.app import app
from refold.temporal.dev import _ports
from tests.cli.conftest import Result
from tests.seen.recorded import unmeasured

ROOT = Path(__file__).parents[4]
COMMAND = [sys.executable, "-m", "refold.cli"]

pytestmark = pytest.mark.server


class Dev:
    """A running `refold dev --json`."""

    def __init__(self, folder: Path, *options: str, **settings: str) -> None:
        environment = {**os.environ, "REFOLD_STORAGE": str(folder), "REFOLD_MODEL": "scripted:demo", **settings}
        self.environment = {name: value for name, value in environment.items() if not name.startswith("TEMPORAL_")}
        self.process = subprocess.Popen(
            [*COMMAND, "dev", "--json", *options],
            cwd=ROOT, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.up: dict[str, Any] = json.loads(line)
        if not self.up["address"].endswith(":7233"):  # where `refold` looks without a setting
            self.environment["TEMPORAL_ADDRESS"] = self.up["address"]

    def terminal(self, *words: str) -> Result:
        """Run the command line in a second terminal."""
        done = subprocess.run(
            [*COMMAND, *words], cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=250, check=False
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def refold(self, *words: str) -> Result:
        """Run the command line as that terminal does, in this process, which has loaded the libraries."""
        done = CliRunner().invoke(app, list(words), env=self.environment)
        return Result(done.exit_code, done.stdout, done.stderr)

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Stop it; its exit code and what it said on stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=250)
        return self.process.returncode, said

    def close(self) -> None:
        """Stop it, if it runs, and close its pipes."""
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One for tests that leave it as it was."""
    running = Dev(tmp_path_factory.mktemp("shared"), "--recovery", "fast-recovery")
    # The first task loads the skills into the sandbox, which a busy machine takes its time for.
    running.terminal("start", "hello", "I am the first", "--wait")
    yield running
    running.close()


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """One for a test that ends it, and needs no gateway."""
    running = Dev(tmp_path, "--no-a2a")
    yield running
    running.close()


def test_another_agent_calls_a_skill_over_a2a(shared: Dev) -> None:
    """
    The card tells of this folder's skills, and the gateway beside the worker answers when the task is done.
    """
    card = httpx.get(shared.up["card"], timeout=250).json()
    said = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "I am Ada"}]}
    body = {"message": said, "metadata": {"skill": "hello"}}
    answer = httpx.post(f"{shared.up['a2a']}/message:send", json=body, headers={"A2A-Version": "1.0"}, timeout=250)

    assert "hello" in [skill["id"] for skill in card["skills"]]
    assert answer.json()["task"]["status"]["message"]["parts"] == [{"text": "Hello, I am Ada!"}]


def test_a_second_terminal_drives_a_task(shared: Dev) -> None:
    """
    From the start over the pause to the end, with the command line only.
    """
    assert {"address", "ui", "namespace", "task_queue", "worker_pid", "a2a", "card"} <= shared.up.keys()

    started = shared.terminal("start", "research_loop", "Tides of the North Sea", "--id", "t1", "--wait", "--json")
    assert (started.exit, started.json["status"]) == (0, "input-required")
    while "t1" not in [one["task_id"] for one in shared.refold("list", "--lifecycle", "paused", "--json").lines]:
        pass  # the index lags by moments

    answered = shared.refold("answer", "t1", "The Dutch coast", "--wait")
    assert answered.exit == 0, answered
    assert answered.out.startswith("t1  completed\n")

    entries = shared.refold("journal", "t1", "--json").lines
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert shared.refold("at", "t1", "1", "--json").json["lifecycle"] == "running"
    assert shared.refold("watch", "t1", "--json").lines == entries
    assert shared.refold("show", "t1", "--json").json["artifacts"][0]["name"] == "final.txt"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["start", "nope", "x"], "UnknownSkill"),
        (["show", "nope"], "TaskNotFound"),
        (["answer", "nope", "x"], "TaskNotFound"),
        (["at", "nope", "1"], "TaskNotFound"),
        (["journal", "nope"], "TaskNotFound"),
        (["watch", "nope"], "TaskNotFound"),
        (["cancel", "nope"], "TaskNotFound"),
    ],
)
def test_wrong_calls_are_refused_by_the_real_engine_too(words: list[str], error: str, shared: Dev) -> None:
    """
    The same errors as in memory, with exit 2.
    """
    done = shared.refold(*words, "--json")

    assert (done.exit, done.error["error"]) == (2, error)


@pytest.mark.parametrize("words", [("serve", "--port", "0"), ("metrics",)], ids=["gateway", "metrics"])
def test_what_runs_on_and_on_does_not_begin_in_a_namespace_that_is_not_there(
    words: tuple[str, ...], shared: Dev
) -> None:
    """
    As a worker does not: a gateway would accept calls, and none of them would find a task.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    with unmeasured():
        done = shared.refold(*words, *([place] if words == ("metrics",) else []), "--namespace", "nope", "--json")

    assert (done.exit, done.out) == (2, "")
    assert "it has no namespace 'nope'" in json.loads(done.err.splitlines()[-1])["message"]


@pytest.mark.fault
def test_the_end_of_the_server_is_said(dev: Dev) -> None:
    """
    Without a server nothing goes on: it ends, and says what is lost and how it would have been kept.
    """
    os.kill(dev.up["server_pid"], signal.SIGKILL)

    _, said = dev.process.communicate(timeout=250)

    assert dev.process.returncode == 2
    assert "the Temporal server ended with code -9" in said
    assert "--db FILE keeps them" in said
    wait_for_end(dev.up["worker_pid"])


@pytest.mark.fault
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.sweep), signal.SIGKILL])
def test_nothing_outlives_it(number: signal.Signals, tmp_path: Path) -> None:
    """
    Server, worker and gateway end with it, however it ends. (SIGINT: see below.) While it runs, its page is open also
    where a setting lets everybody call: beside a gateway of `refold serve` there is none then, but the one of
    `refold dev` is for this machine.
    """
    running = Dev(tmp_path, REFOLD_A2A_ANONYMOUS="1")
    try:
        inbox = httpx.get(running.up["page"], timeout=250)
    finally:
        running.stop(number)

    assert inbox.status_code == 200
    for process in ("worker", "server", "gateway"):
        wait_for_end(running.up[f"{process}_pid"])


def test_a_gateway_that_is_started_again_is_where_it_was(shared: Dev) -> None:
    """
    No other process can take its port while it is down: addresses of callbacks lead there, and people have the page
    open.
    """
    os.kill(shared.up["gateway_pid"], signal.SIGKILL)
    wait_for_end(shared.up["gateway_pid"])
    port = int(shared.up["a2a"].rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))

    assert httpx.get(shared.up["page"], timeout=250).status_code == 200


def test_without_a_gateway_there_are_no_settings_of_callbacks(tmp_path: Path) -> None:
    """
    Nobody would serve their addresses: `ctx.callback` says what is missing.
    """
    (tmp_path / "workflows.py").write_text(
        "import os; raise ImportError([name for name in os.environ if name.startswith('REFOLD_CALLBACK')])"
    )
    done = subprocess.run(
        [*COMMAND, "dev", "--no-a2a"], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )

    assert "ImportError: []" in done.stderr


def wait_for_end(pid: int) -> None:
    """Until the process is gone; fails after a while."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 250)[0], f"process {pid} lives on"
    finally:
        os.close(handle)


def test_a_bad_application_stops_it(tmp_path: Path) -> None:
    """
    What no restart mends is said once, and ends everything.
    """
    (tmp_path / "workflows.py").write_text("import no_such_package\n")
    done = subprocess.run([*COMMAND, "dev"], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "workflows.py cannot be imported: ModuleNotFoundError" in done.stderr
    assert done.stdout == ""


def test_a_worker_that_cannot_start_stops_it(tmp_path: Path) -> None:
    """
    Storage that is not there is said at once, instead of tasks that hang.
    """
    environment = {**os.environ, "REFOLD_STORAGE": str(tmp_path / "missing")}
    done = subprocess.run(
        [*COMMAND, "dev", "--no-a2a"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "REFOLD_STORAGE" in done.stderr


def test_a_taken_port_is_said(shared: Dev) -> None:
    """
    The error names the port and what to do.
    """
    done = shared.refold("dev", "--port", shared.up["address"].rpartition(":")[2], "--json")

    assert done.exit == 2
    assert "choose another" in done.error["message"]


@pytest.mark.fault
def test_a_killed_worker_is_reported_and_started_again(shared: Dev) -> None:
    """
    A task that comes while no worker is there is served by the next one. (The last test of the shared one: it ends it.)
    """
    os.kill(shared.up["worker_pid"], signal.SIGKILL)

    done = shared.refold("start", "hello", "I am Ada", "--wait")
    code, said = shared.stop(signal.SIGINT)

    assert done.out.endswith("completed\n  Hello, I am Ada!\n")
    assert code == 0
    wait_for_end(shared.up["server_pid"])
    assert "the worker was killed by SIGKILL; starting it again\n" in said
    assert "the worker is back, process " in said


def test_the_usual_ports_are_taken_where_they_are_free() -> None:
    """
    A second server beside the first takes other ports; a port that is given is taken, or refused.
    """
    with socket.socket() as taken, socket.socket() as other, ExitStack() as claims:
        for one in (taken, other):
            one.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
        other.close()
        busy = taken.getsockname()[1]

        assert _ports(None, None, (free, 0), claims)[0] == free
        assert _ports(None, None, (busy, busy), claims)[0] != busy
        assert _ports(5, None, (free, 0), claims)[0] == 5
