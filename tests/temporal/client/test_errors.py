"""How refusals of the server are told."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker._workflow import _DeadlockError

import refold
from refold import Content, Ctx, Transition, flow_skill, step
from refold.engine import EngineError, NotConnected
from refold.temporal import connect
from refold.temporal.client.errors import explained, not_served, server_refused, slow, timed_out
from refold.temporal.client.fleet.polling import Poller, Polls
from refold.temporal.client.watch.reconnect import cut
from refold.testing import play


@pytest.mark.parametrize(
    ("patch", "code"),
    [("refold.later", "release of refold"), ("mine", "code"), ("the new rule, of May", "code")],
)
def test_what_a_rollback_misses_is_named(patch: str, code: str) -> None:
    """
    Code without a patch cannot replay what code with it has recorded: to ask for the patch would be no way out of
    one of refold's own.
    """
    said = explained(
        "[TMPRL1100] Nondeterminism error: Non-deprecated patch marker encountered for change "
        f"{patch}, but there is no corresponding change command!"
    )

    assert said.startswith(f"the task has gone on with the patch {patch!r}, for which its worker's {code} does not ask")
    assert said.endswith(f"run the {code} that asks for it, and the task goes on")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param(RPCStatusCode.UNAVAILABLE, "tcp connect error", id="nobody listens"),
        pytest.param(RPCStatusCode.UNKNOWN, "transport error", id="killed under a call"),
        pytest.param(RPCStatusCode.DEADLINE_EXCEEDED, "Timeout expired", id="silent"),
    ],
)
def test_a_server_that_is_away_is_no_refusal(status: RPCStatusCode, message: str) -> None:
    """
    However the connection was lost, the caller may try again once the server is back.
    """
    assert isinstance(server_refused(RPCError(message, status, b""), "start it"), NotConnected)


@pytest.mark.parametrize(
    "address", ["localhost:x", "localhost:99999", ":7233", "my host:7233", "http://localhost:7233"]
)
async def test_what_is_no_address_is_said_with_what_is_one(address: Any) -> None:
    """
    A slip in TEMPORAL_ADDRESS is the caller's, and no error of refold's own.
    """
    with pytest.raises(NotConnected, match=f"{address!r} is no address of a Temporal server.* write host:port"):
        await connect(address=address)


@pytest.mark.parametrize("address", ["localhost", "localhost:"])
async def test_a_missing_port_is_said_where_no_server_answers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without one the SDK asks HTTP's own ports, where a proxy may answer; nothing says that it did.
    """

    async def refuse(**_: Any) -> None:
        raise RuntimeError("Connection refused")

    monkeypatch.setattr(Client, "connect", refuse)

    with pytest.raises(NotConnected, match=r"The address names no port; Temporal's own is localhost:7233\."):
        await connect(address=address)


async def test_a_certificate_without_its_key_is_a_setting_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The address is not blamed for it.
    """
    (tmp_path / "worker.pem").touch()
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", str(tmp_path / "worker.pem"))

    with pytest.raises(NotConnected, match="settings cannot be used: Must have both client cert and private key"):
        await connect()


FORKED = """
import asyncio, os
from refold.engine import NotConnected
from refold.temporal import connect

async def refused():
    try:
        await connect(address="127.0.0.1:1")
    except NotConnected as error:
        return str(error)

asyncio.run(refused())
if (child := os.fork()) == 0:
    print(asyncio.run(refused()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


FORKED_ENGINE = """
import asyncio, os
from temporalio.client import Client
from refold.engine import NotConnected
from refold.temporal import TemporalEngine

async def refused(use):
    try:
        await use()
    except NotConnected as error:
        print(error, flush=True)

async def watched():
    async for _ in engine.watch("task"):
        pass

engine = TemporalEngine(asyncio.run(Client.connect("127.0.0.1:1", lazy=True)))
if (child := os.fork()) == 0:
    for use in (lambda: engine.look("task"), watched, lambda: engine.schedules.look("daily")):
        asyncio.run(refused(use))
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_with_an_engine_of_its_parent_is_told_so() -> None:
    """
    By whatever it asks of the engine, as where a web server loads the program before it forks.
    """
    done = subprocess.run([sys.executable, "-c", FORKED_ENGINE], capture_output=True, text=True, check=True)

    assert [line[:32] for line in done.stdout.splitlines()] == ["this process was forked from one"] * 3


def test_a_fork_of_a_process_that_had_connected_is_told_to_connect_in_the_children_alone() -> None:
    """
    The SDK's runtime does not survive a fork, as web servers make of a program that they have loaded.
    """
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("this process was forked from one that had connected")
    assert "spawn" in done.stdout


def test_a_crowd_before_a_task_is_told_to_try_again() -> None:
    """
    The server lets ten updates of a task wait for its worker, and has not taken the next one.
    """
    message = "limit on number of concurrent in-flight updates has been reached (10)"
    error = server_refused(RPCError(message, RPCStatusCode.RESOURCE_EXHAUSTED, b""), "reach task 'A1'")

    assert isinstance(error, NotConnected)
    assert str(error).endswith("Nothing was changed: try again")


@pytest.mark.parametrize("message", ["namespace rate limit exceeded", "Workflow is busy.", "system overloaded"])
def test_a_server_that_takes_no_more_calls_for_now_is_one_that_does_not_answer(message: str) -> None:
    """
    Whoever called may try again, and a watch does.
    """
    busy = RPCError(message, RPCStatusCode.RESOURCE_EXHAUSTED, b"")
    error = server_refused(busy, "reach task 'A1'")

    assert isinstance(error, NotConnected)
    assert str(error) == f"the server cannot reach task 'A1' now: it is too busy ({message}); try again later"
    assert cut(busy)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("unexpected", RPCStatusCode.UNKNOWN),
        ("grpc: received message larger than max (5000000 vs. 4194304)", RPCStatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_other_errors_stay_what_they_are(message: str, status: RPCStatusCode) -> None:
    """
    An answer that names another cause is no outage, and a call that is too large is never taken.
    """
    refusal = RPCError(message, status, b"")
    error = server_refused(refusal, "start it")

    assert type(error) is EngineError
    assert f"start it: {message}" in str(error)
    assert not cut(refusal)


@pytest.mark.parametrize(
    ("message", "waits"),
    [
        pytest.param("consistent query buffer is full, this may be caused by too many queries", True, id="queries"),
        pytest.param("namespace rate limit exceeded", False, id="the namespace's limit"),
    ],
)
def test_a_query_behind_others_has_not_been_answered_in_time(message: str, waits: bool) -> None:
    """
    The server takes one for a workflow at a time while its worker is busy: it is asked again, and nothing is said of a
    worker that could not go on.
    """
    assert timed_out(RPCError(message, RPCStatusCode.RESOURCE_EXHAUSTED, b"")) is waits


BLOCKED, FREED = threading.Event(), threading.Event()


@flow_skill(id="computes")
class Computes:
    @step(start=True)
    async def mine(self, ctx: Ctx, content: Content) -> Transition:
        _digest()
        return ctx.complete()


def _digest() -> None:
    BLOCKED.set()
    FREED.wait()


def test_a_step_that_computes_for_too_long_is_named_with_the_way_out() -> None:
    """
    The SDK's failure speaks of a deadlock; the stack that comes with it says whose code it is.
    """
    thread = threading.Thread(target=play, args=[Computes, "go"])
    thread.start()
    BLOCKED.wait()
    try:
        late = _DeadlockError(
            "[TMPRL1101] Potential deadlock detected", _DeadlockError._gen_tb_helper(thread.ident or 0)
        )
        late.swap_traceback()
        failure, converter = Failure(), DataConverter.default
        converter.failure_converter.to_failure(late, converter.payload_converter, failure)
    finally:
        FREED.set()
        thread.join()

    said = explained(failure.message, failure.stack_trace)
    assert said.startswith(f"'mine' ({__file__}, line ")
    assert "let a tool do what computes" in said
    assert explained(failure.message).startswith("its code did not come back within the two seconds")


HERE = "/app/.venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("innermost_first", "author"),
    [
        pytest.param(
            ["/app/shop.py", f"{HERE}/refold/core/steps/drive.py"], "'of_1' (/app/shop.py, line 1) ", id="own"
        ),
        pytest.param(["/home/ada/refold/shop.py", "/src/refold/core/fold/apply.py"], "'of_1' (/home/", id="own folder"),
        pytest.param(
            [f"{HERE}/numpy/dot.py", "/app/shop.py", f"{HERE}/refold/core/steps/drive.py"],
            "'of_2' (/app/shop.py, line 2) ",
            id="a library that it calls",
        ),
        pytest.param(
            [f"{HERE}/pydantic/main.py", f"{HERE}/refold/core/codec.py"], "its code ", id="pydantic for refold"
        ),
        pytest.param(
            ["/usr/lib/python3.12/json/encoder.py", "/src/refold/digests.py"], "its code ", id="json for refold"
        ),
        pytest.param(["/app/shop.py", "/usr/lib/python3.12/asyncio/base_events.py"], "its code ", id="no refold"),
    ],
)
def test_code_that_takes_too_long_is_the_authors(innermost_first: list[str], author: str) -> None:
    """
    A library is not named, whoever calls it, and refold's own code is nobody's to mend.
    """
    trace = "\n".join(f'File "{file}", line {n}, in of_{n}' for n, file in enumerate(innermost_first, 1))

    assert explained("[TMPRL1101] Potential deadlock detected", trace).startswith(author)


@pytest.mark.parametrize("module", [module.name for module in iter_modules(refold.__path__)])
def test_no_code_of_refold_is_the_authors(module: str) -> None:
    """
    Whichever of its parts a stack ends in.
    """
    trace = f'File "/src/refold/{module}.py", line 1, in it\nFile "/src/refold/core/fold/apply.py", line 2, in advance'

    assert explained("[TMPRL1101] Potential deadlock detected", trace).startswith("its code did not come back")


@pytest.mark.parametrize(
    ("pinned", "current", "ramping", "ago_s", "said"),
    [
        pytest.param("", "", "", {}, "no worker answers on task queue 'q'", id="nobody"),
        pytest.param("", "", "", {"s:v1": 200}, "no worker answers on", id="one that is gone"),
        pytest.param("", "", "", {"s:v1": 1}, "a worker of version s:v1 polls", id="not yet current"),
        pytest.param("", "", "s:v2", {"s:v1": 200}, "no worker answers on", id="none of the ramping version"),
        pytest.param("", "", "", {"s:b10": 1, "s:b9": 5}, "a worker of version s:b10", id="the newest"),
        pytest.param("", "", "s:v1", {"s:v1": 1}, "", id="ramping"),
        pytest.param("", "s:v1", "", {"s:v1": 1}, "", id="current"),
        pytest.param("", "s:v1", "", {"": 1}, "no worker of version s:v1 answers", id="unversioned"),
        pytest.param("s:v1", "s:v2", "", {"s:v2": 1}, "no worker of version s:v1", id="pinned"),
        pytest.param("s:v1", "s:v2", "", {"s:v1": 1}, "", id="pinned and served"),
    ],
)
def test_why_a_queue_does_not_serve_a_task(
    pinned: str, current: str, ramping: str, ago_s: dict[str, int], said: str
) -> None:
    """
    Workers that are gone are not named, nor is a version blamed that is given tasks.
    """
    why = not_served("q", pinned, polled(ago_s, current, ramping))

    assert why.startswith(said)
    assert bool(why) is bool(said)


@pytest.mark.parametrize("pinned", ["", "s:v1"])
def test_a_clock_ahead_takes_no_worker_for_gone(pinned: str) -> None:
    """
    The server forgets workers five minutes after their last poll: what it lists and seems older shows that this
    machine's clock is ahead. Where it could be either, the message says how old the poll seems.
    """
    versions = (pinned, "s:v2")

    assert not_served("q", pinned, polled({versions[0]: 3_602, versions[1]: 3_601})) == ""
    assert " 1 s ago: it is busy" in slow("q", pinned, polled({versions[0]: 3_602, versions[1]: 3_601}))
    assert not_served("q", pinned, polled({versions[0]: 3_700, versions[1]: 3_601}))
    assert "(by this machine's clock, one polled 130 s ago; if it still runs, that clock is ahead)" in not_served(
        "q", pinned, polled({pinned: 130})
    )
    assert "clock" not in not_served("q", pinned, polled({}))


def polled(ago_s: dict[str, int], current: str = "", ramping: str = "") -> Polls:
    """Workers of these versions, which polled so many seconds ago."""
    now = datetime.now(UTC)
    pollers = (Poller(f"of {version}", "", version, now - timedelta(seconds=ago)) for version, ago in ago_s.items())
    return Polls(tuple(pollers), current, ramping)


@pytest.mark.parametrize(
    ("pinned", "current", "said"),
    [
        pytest.param("", "", " 1 s ago|`refold worker --task-queue q` starts", id="no version"),
        pytest.param("", "s:v1", " 60 s ago|`refold worker --task-queue q --deployment s --build-id v1`", id="current"),
        pytest.param(
            "s:v1", "s:v2", " 60 s ago|`refold worker --task-queue q --deployment s --build-id v1`", id="pinned"
        ),
    ],
)
def test_who_waits_is_told_of_a_worker_that_is_given_the_task(pinned: str, current: str, said: str) -> None:
    """
    When one of its version polled last, and how to start another one: workers of other versions are not given the task.
    """
    why = slow("q", pinned, polled({"": 1, "s:v1": 60, "s:v2": 2}, current))

    assert all(words in why for words in said.split("|")), why
