"""A worker's log: on stderr, since stdout is for results; and without texts where texts are encrypted."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.typing import EventDict
from temporalio.exceptions import CancelledError

from refold.core.values import shortened
from refold.engine import CodecError, StorageError
from refold.engine.arguments import takes
from refold.seen.logs import texts_of_lines

_QUOTED = re.compile(r"(\berror\b[^:]*): .*", re.DOTALL)  # an error's message, in a line of the SDK

_SDK_LOGGERS = (
    *("temporalio.activity", "temporalio.workflow", "temporalio.worker._activity"),
    *("temporalio.worker._workflow", "temporalio.worker._workflow_instance"),
)

_MCP_STDIO = "mcp.client.stdio"
_MCP_LOGGERS = (_MCP_STDIO, "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher", "client")
"""Loggers of the MCP SDK whose lines repeat what a server sent; its sessions log as `client`."""


@takes()
def log_to_stderr(*, as_json: bool) -> None:
    """Write log lines of INFO and above to stderr, unless the application has set up structlog itself.

    Args:
        as_json: One object a line, instead of columns for people.
    """
    if structlog.is_configured():
        return
    columns = (_escaped, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            # A log line about a task's change has the change's own timestamp already.
            structlog.processors.MaybeTimeStamper(fmt="iso", utc=True),
            *([structlog.processors.JSONRenderer()] if as_json else columns),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Not PrintLoggerFactory: it takes stderr for stdout where structlog was first imported while stdout was
        # redirected to stderr, as the command line does while it imports an application.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


def _escaped(_logger: object, _level: str, line: EventDict) -> EventDict:
    """A line whose texts hold nothing that a terminal obeys, nor what turns the direction of the rest; JSON is escaped
    anyway."""
    return {name: _printable(value) if isinstance(value, str) else value for name, value in line.items()}


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)


def keep_texts_out() -> None:
    """Leave what people, models and tools wrote out of this process's log, from now on.

    Ids, names, counts and kinds of failures stay. Of the SDKs' lines the tracebacks go, whose messages quote it.
    """
    texts_of_lines(kept=False)
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addFilter(_without_error)  # added once, however often it is asked for
    for name in _MCP_LOGGERS:
        logging.getLogger(name).addFilter(_without_quotes)


def _without_error(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    record.msg = _QUOTED.sub(r"\1", str(record.msg))
    return True


def _without_quotes(record: logging.LogRecord) -> bool:
    if f"{os.sep}mcp{os.sep}" in record.pathname:  # a module of the program's own may log as `client`, too
        record.exc_info = record.exc_text = None
        record.msg, record.args = str(record.msg).partition(": ")[0], ()
    return True


def keep_short() -> None:
    """Write one line, without a traceback, for a workflow task that is left to another worker or waits for storage, and
    for a history that this worker cannot read, for want of a key or a stored value.

    Also for what an MCP server writes to its stdout that is no message, such as a log of its own; and for an effect
    that is canceled since its task has ended or the server has timed it out, which the SDK calls a failure.
    """
    for name in (*_SDK_LOGGERS, _MCP_STDIO):
        logging.getLogger(name).addFilter(_in_one_line)


_AS_PLANNED = ("LeftToOthers", "AnotherRelease", "InputAbsent")
"""Errors that fail a workflow task on purpose. By name: the sandbox imports a class anew."""


def _in_one_line(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and (why := _instead(record.name, error)):
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {why}", (), None
    return True


def _instead(logger: str, error: BaseException) -> str:
    """What is told instead of a traceback; empty for what may be a bug."""
    if isinstance(error, asyncio.CancelledError | CancelledError):
        return "it was canceled"
    planned = isinstance(error, CodecError | StorageError) or type(error).__name__ in _AS_PLANNED
    return shortened(" ".join(str(error).split()), 1000) if planned or logger == _MCP_STDIO else ""


_quieting = threading.Lock()
_before: list[int] = []  # the level that each replay found which goes on; the log goes back to the first


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the SDK logs of each mismatch of a replay, with a stack trace. Several may overlap."""
    logger = logging.getLogger("temporalio")
    with _quieting:
        _before.append(logger.level)
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        with _quieting:
            level = _before.pop()
            if not _before:
                logger.setLevel(level)
