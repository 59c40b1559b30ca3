"""Maps refold's errors to A2A's; internal errors are logged, and callers get a reference number only."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Set
from contextlib import aclosing, contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.utils.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.message import Message as ProtoMessage

from refold.a2a.names import check_names
from refold.core.errors import InputRejected
from refold.engine import (
    CodeChanged,
    EngineError,
    NotConnected,
    NoWorker,
    PayloadTooLarge,
    Taken,
    TaskNotFound,
    UnknownSkill,
)
from refold.seen.logs import logger

log = logger("refold.a2a")

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

BUSY = "The agent cannot take this now; try again."
SILENT = "The agent does not answer now. It may still take what it was sent: look at the task before you send it again."
CHANGED = (
    "The agent's code has changed under this task, which takes nothing until whoever runs the agent has put the code "
    "right. Nothing is lost; send it again then."
)

ALONE = "register the webhook alone, by CreateTaskPushNotificationConfig"
"""What the caller does whose message was taken, but not the webhook that came with it; a part of an error's text."""


def as_a2a(error: Exception) -> A2AError:
    """The A2A error for the caller. Details of an internal error go to the log, under a number that the caller gets."""
    match error:
        case A2AError():
            return error
        case TaskNotFound():
            return TaskNotFoundError(f"no task {error.task_id!r}")
        case InputRejected():
            return UnsupportedOperationError(error.reason)
        case UnknownSkill() | PayloadTooLarge():
            return InvalidParamsError(str(error))
        case CodeChanged():
            log.warning("code_changed", why=str(error))
            return UnsupportedOperationError(CHANGED)
        case NoWorker() | NotConnected():
            log.warning("unavailable", why=str(error))
            return InternalError(SILENT if isinstance(error, NoWorker) else BUSY)
        case _:
            pass
    number = uuid4().hex[:12]
    foreseen = isinstance(error, EngineError)
    log.error("request_failed", reference=number, why=str(error), exc_info=None if foreseen else error)
    return InternalError(f"Internal error; whoever runs the agent finds it in the log as {number}")


@contextmanager
def sent_to(task_id: str, *, registers: bool = False) -> Iterator[None]:
    """For the call that sends a task its message: where the server or the worker does not answer, the task may take it
    all the same.

    Args:
        task_id: The task.
        registers: A webhook came with the message, and is registered after it.
    """
    try:
        yield
    except Taken as error:
        raise _taken(task_id, error, registers=registers) from error
    except NotConnected as error:
        said = f"Task {task_id!r} may have taken the message: get the task before you send the message again"
        raise _away(error, said, "If it has taken it" if registers else "") from error
    except CodeChanged:
        raise  # the task has not taken the message: both are sent again
    except NoWorker as error:
        if registers:
            raise InternalError(f"{as_a2a(error).message} If it has taken it: {ALONE}") from error
        raise


@contextmanager
def taken_by(task_id: str, *, registers: bool = False) -> Iterator[None]:
    """For what a call does after a task has taken its message: that a server or a worker does not answer is no reason
    to send the message again.

    Args:
        task_id: The task.
        registers: A webhook came with the message, and is registered after this.
    """
    try:
        yield
    except (NotConnected, NoWorker) as error:
        raise _taken(task_id, error, registers=registers) from error


def _taken(task_id: str, error: EngineError, *, registers: bool) -> InternalError:
    said = f"Task {task_id!r} has taken the message, and goes on: get it later, and do not send the message again"
    return _away(error, said, "It has not taken the webhook" if registers else "")


def _away(error: EngineError, said: str, of_webhook: str) -> InternalError:
    """The caller's error, where the server or the worker does not answer.

    Args:
        error: The engine's error, for the log.
        said: What became of the message, and what the caller does now.
        of_webhook: What became of the webhook that came with the message; empty for a message without one.
    """
    log.warning("unavailable", why=str(error))
    webhook = f". {of_webhook}: {ALONE}" if of_webhook else ""
    return InternalError(f"The agent cannot be reached at the moment. {said}{webhook}")


def method(
    serve: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Decorates a method of the handler: checks the request's required fields, and raises A2A's errors."""

    @functools.wraps(serve)
    async def served(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            _check(self, *args, **kwargs)
            return await serve(self, *args, **kwargs)
        except Exception as error:
            raise as_a2a(error) from error

    return served


def method_that_yields(
    serve: Callable[Concatenate[S, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[S, P], AsyncGenerator[R, None]]:
    """As `method`, for a method that yields events."""

    @functools.wraps(serve)
    async def served(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        try:
            _check(self, *args, **kwargs)
            async with aclosing(serve(self, *args, **kwargs)) as events:
                async for event in events:
                    yield event
        except Exception as error:
            raise as_a2a(error) from error

    return served


def _check(handler: object, *args: object, **kwargs: object) -> None:
    for given in (*args, *kwargs.values()):
        if isinstance(given, ServerCallContext):
            _check_extensions(getattr(handler, "required_extensions", frozenset()), given)
    for given in (*args, *kwargs.values()):
        if isinstance(given, ProtoMessage):
            validate_proto_required_fields(given)
            check_names(given)


def _check_extensions(required: Set[str], context: ServerCallContext) -> None:
    if missing := required - context.requested_extensions:
        raise ExtensionSupportRequiredError(
            f"this agent is only called with the header A2A-Extensions: {', '.join(sorted(missing))}"
        )
