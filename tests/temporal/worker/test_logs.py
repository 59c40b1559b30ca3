"""What a worker writes to its log."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys

import pytest
from mcp.client import stdio
from temporalio.exceptions import CancelledError

from refold.engine import CodecError, StorageError
from refold.temporal.data.inputs import AnotherRelease
from refold.temporal.worker.logs import _without_error, keep_short, quiet
from refold.temporal.worker.registry import LeftToOthers
from refold.temporal.worker.task.absences import InputAbsent

CHANGE = """
import contextlib, sys
with contextlib.redirect_stdout(sys.stderr):  # as while the command line imports an application
    import structlog
from refold.temporal.worker.logs import log_to_stderr

log_to_stderr(as_json=True)
structlog.get_logger().info("state_transition", task_id="t", timestamp="2026-01-02T03:04:05+00:00")
structlog.get_logger().info("worker_started")
structlog.get_logger().debug("effect_done")
"""


def test_a_change_keeps_the_time_it_happened_at() -> None:
    """
    Lines are JSON on stderr, from INFO on, each with a time: the task's own where it has one.
    """
    done = subprocess.run([sys.executable, "-c", CHANGE], capture_output=True, text=True, check=True)

    change, started = (json.loads(line) for line in done.stderr.splitlines())

    assert done.stdout == ""
    assert change == {
        "event": "state_transition",
        "level": "info",
        "task_id": "t",
        "timestamp": "2026-01-02T03:04:05+00:00",
    }
    assert started["event"] == "worker_started"
    assert started["timestamp"]


HOSTILE = """
import structlog
from refold.temporal.worker.logs import log_to_stderr

log_to_stderr(as_json=False)
structlog.get_logger().info("call_refused", path="/x\\x1b[2Jred", by="\\u202eadmin", seq=7, reason="one\\rtwo lines\\n")
try:
    raise ValueError("\\x1b]0;title\\x07\\x9b2J")
except ValueError as error:
    structlog.get_logger().error("request_failed", exc_info=error)
"""


def test_a_terminal_obeys_nothing_that_a_line_quotes() -> None:
    """
    A caller without a key chooses the path that a refusal's line has. Line ends and tabs of a traceback stay.
    """
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, check=True)
    refused, failed, *traceback = done.stderr.decode().removesuffix("\n").split("\n")

    assert all(line.isprintable() for line in (refused, failed, *traceback))
    assert r"path=/x\x1b[2Jred" in refused
    assert r"by=\u202eadmin" in refused
    assert "seq=7" in refused
    assert "request_failed" in failed
    assert traceback[0].startswith("Traceback")
    assert traceback[-1].startswith(r"ValueError: \x1b]0;title")


ENCRYPTED = """
import logging
from refold.seen.logs import logger
from refold.temporal.worker.logs import keep_texts_out, log_to_stderr

log_to_stderr(as_json=True)
keep_texts_out()
keep_texts_out()
log = logger("refold.task")
log.warning("event_refused", task_id="t", reason="xanthoma", by="xanthoma")
log.bind(message="xanthoma").warning("approval_reminder", task_id="t")
log.info("state_transition", task_id="t", metadata={"by": "ada", "comment": "xanthoma"})
logger = logging.getLogger("temporalio.activity")
try:
    raise ValueError("xanthoma")
except ValueError as error:
    logger.warning("Completing activity as failed ({'activity_id': 'a'})", exc_info=True)
    logger.warning(f"Completing as failure during heartbeat with error of type ValueError: {error}")
    logger.exception(f"Exception handling failed, original error: {error}")
from mcp.client import session, stdio, streamable_http
from mcp.shared import jsonrpc_dispatcher
stdio._parse_line("xanthoma")
for module in (session, streamable_http, jsonrpc_dispatcher):
    said = "dropping tool %r: invalid x-mcp-header (%s)", ("pay", "xanthoma"), None
    module.logger.handle(module.logger.makeRecord(module.logger.name, logging.WARNING, module.__file__, 1, *said))
logging.getLogger("client").warning("the program's own: %s", "kept")
"""


def test_where_texts_are_encrypted_the_log_has_none() -> None:
    """
    Who and which, but not what was said: neither in refold's lines nor in those of the SDKs.
    """
    done = subprocess.run([sys.executable, "-c", ENCRYPTED], capture_output=True, text=True, check=True)
    refused, asked, moved, *others = done.stderr.splitlines()

    assert "xanthoma" not in done.stderr
    assert json.loads(refused) | {"timestamp": ""} == {
        "event": "event_refused",
        "level": "warning",
        "task_id": "t",
        "reason": "(encrypted)",
        "by": "(encrypted)",
        "timestamp": "",
    }
    assert json.loads(asked)["message"] == "(encrypted)"
    assert json.loads(moved)["metadata"] == {"by": "ada", "comment": "(encrypted)"}
    assert others == [
        "Completing activity as failed ({'activity_id': 'a'})",
        "Completing as failure during heartbeat with error of type ValueError",
        "Exception handling failed, original error",
        "Failed to parse JSONRPC message from server",
        *["dropping tool %r"] * 3,
        "the program's own: kept",
    ]


LATER = """
import sys
import structlog
from refold.seen.logs import logger
from refold.temporal.worker.logs import keep_texts_out

def set_up():
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )

log = logger("refold.task")
for setting in sys.argv[1:]:
    {"log": set_up, "line": lambda: log.info("worker_started"), "codec": keep_texts_out}[setting]()
log.warning("event_refused", task_id="t", reason="xanthoma", by="xanthoma")
"""


@pytest.mark.parametrize("order", [("codec", "log"), ("log", "line", "codec")], ids=" ".join)
def test_a_log_of_the_applications_own_has_no_texts_either(order: tuple[str, ...]) -> None:
    """
    Where it is set up after the worker is made, and where its first line was written before.
    """
    command = [sys.executable, "-c", LATER, *order]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    refused = json.loads(done.stderr.splitlines()[-1])
    assert refused == {"event": "event_refused", "task_id": "t", "reason": "(encrypted)", "by": "(encrypted)"}


@pytest.mark.parametrize("error", [LeftToOthers("why"), AnotherRelease("why"), InputAbsent("why"), KeyError("why")])
def test_what_is_no_bug_takes_one_line(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Only what fails a workflow task on purpose, and what an MCP server says aside: a bug keeps its traceback.
    """
    for name in ("temporalio.worker._workflow_instance", "mcp.client.stdio"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])  # an encrypting worker's stay for the process
    keep_short()

    logging.getLogger("temporalio.worker._workflow_instance").warning("Failed activation", exc_info=error)

    stdio._parse_line("50% done, as its log says")
    said, bug = caplog.records[0], isinstance(error, KeyError)
    assert said.getMessage() == ("Failed activation" if bug else "Failed activation: why")
    assert (said.exc_info is not None) is bug
    told = caplog.records[1].getMessage()
    assert "Failed to parse JSONRPC message from server: " in told
    assert "50% done, as its log says" in told
    assert "\n" not in told + (caplog.records[1].exc_text or "")
    assert caplog.records[1].exc_info is None


@pytest.mark.parametrize("error", [CodecError("its key is not here"), StorageError("no disk"), KeyError("said")])
@pytest.mark.parametrize("encrypting", [False, True])
def test_a_history_that_cannot_be_read_says_why_in_one_line(
    error: Exception, encrypting: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Also where texts are encrypted: the reason quotes nobody. Any other error keeps its traceback, or says nothing.
    """
    logger = logging.getLogger("temporalio.worker._workflow")
    monkeypatch.setattr(logger, "filters", [])
    keep_short()
    if encrypting:
        logger.addFilter(_without_error)

    logger.error("Failed handling activation on workflow with run ID 1", exc_info=error)

    [line] = caplog.records
    why = "" if isinstance(error, KeyError) else f": {error}"
    assert line.getMessage() == f"Failed handling activation on workflow with run ID 1{why}"
    assert (line.exc_info is not None) is (not why and not encrypting)


@pytest.mark.parametrize("error", [asyncio.CancelledError("said"), CancelledError("said"), KeyError("said")])
def test_an_effect_that_nobody_waits_for_any_more_takes_one_line(
    error: BaseException, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its task has ended, or the server has timed it out: where it was then, as in a request to S3, is no bug.
    """
    monkeypatch.setattr(logging.getLogger("temporalio.activity"), "filters", [])
    keep_short()

    logging.getLogger("temporalio.activity").warning("Completing activity as failed (a)", exc_info=error)

    [line] = caplog.records
    bug = isinstance(error, KeyError)
    assert line.getMessage() == "Completing activity as failed (a)" + ("" if bug else ": it was canceled")
    assert (line.exc_info is not None) is bug


def test_replays_that_overlap_leave_the_log_as_it_was() -> None:
    """
    Whichever ends first, the other one stays quiet, and then the log speaks again.
    """
    log, replays = logging.getLogger("temporalio.worker"), (quiet(), quiet())
    for replay in replays:
        replay.__enter__()

    replays[0].__exit__(None, None, None)
    assert not log.isEnabledFor(logging.ERROR)

    replays[1].__exit__(None, None, None)
    assert log.isEnabledFor(logging.WARNING)
