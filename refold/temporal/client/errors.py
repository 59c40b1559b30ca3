"""What refold's errors say where a server or a worker refuses, fails, or does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import takewhile
from pathlib import Path
from pkgutil import iter_modules
from shlex import quote

from pydantic_core import PydanticSerializationError
from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowQueryFailedError,
)
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import InputRejected
from refold.core.values import REFUSAL_CHARS, shortened
from refold.divergence import DIFFERS
from refold.engine import CodecError, EngineError, NotConnected, TaskNotFound, TaskView
from refold.engine.view import not_begun
from refold.temporal.client.failed import failed_task
from refold.temporal.client.fleet.polling import ACTIVITIES, POLLING_S, WORKFLOWS, Polls, polls_of, without_ended
from refold.temporal.data.search_attributes import REGISTER, SKILL

QUEUE = "refold"
"""The queue of workers that are given no other."""

VERSION = SearchAttributeKey.for_keyword("TemporalWorkerDeploymentVersion")
"""The version of a worker deployment that a run is pinned to, as the server writes it."""

NOT_FITTING = "TMPRL1100"
"""Temporal's number for code that does not fit a history."""

_MARKER = re.compile(r"patch marker encountered for change (.+), but there is no")
"""What the SDK says where history has the marker of a patch that the code does not ask for."""

MISSED_DEADLINE = "TMPRL1101"
"""Temporal's number for an activation that took longer than the two seconds that the SDK allows."""


NO_REASON = "the server keeps no reason of the failure"
"""What is said of a task whose workflow tasks fail after one that was lost."""

QUERIES_WAIT = "query buffer is full"
"""What the server says of a query while others, of the same workflow, wait for its worker."""


CROWDED = "concurrent in-flight updates"
"""What the server says of an update while ten others, of the same workflow, wait for its worker."""


TOO_LARGE = "message larger than max"
"""What gRPC says of a call that no server takes, with the status of a server that is too busy."""


def _too_busy(error: RPCError) -> bool:
    """Whether the server takes no more calls for now, of anybody or of the task's namespace."""
    return error.status is RPCStatusCode.RESOURCE_EXHAUSTED and not any(
        words in error.message for words in (QUERIES_WAIT, TOO_LARGE)
    )


def server_away(error: Exception) -> bool:
    """Whether a call ended because the server was not there, its connection broke, or the server was too busy."""
    # The SDK reports a connection that breaks under a call as UNKNOWN, with these words.
    return isinstance(error, RPCError) and (
        _too_busy(error)
        or error.status is RPCStatusCode.UNAVAILABLE
        or (error.status is RPCStatusCode.UNKNOWN and "transport error" in error.message)
    )


def timed_out(error: Exception) -> bool:
    """Whether a call ended because no answer came in time; a busy worker may miss the deadline that the SDK sets it."""
    if isinstance(error, WorkflowQueryFailedError):
        return MISSED_DEADLINE in error.message
    if isinstance(error, RPCError) and error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        return QUERIES_WAIT in error.message
    return isinstance(error, RPCTimeoutOrCancelledError) or (
        isinstance(error, RPCError) and error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
    )


def in_failed_state(error: Exception) -> bool:
    """Whether nobody was asked, because the task's workflow tasks fail."""
    return isinstance(error, WorkflowQueryFailedError | RPCError) and any(
        words in error.message for words in ("Workflow Task in failed state", DIFFERS)
    )


def under_way(description: WorkflowExecutionDescription) -> bool:
    """Whether a worker has a task's workflow task, its first attempt: the server answers nobody before it has ended. A
    lost worker's ends after a timeout, ten seconds unless the server was told otherwise."""
    waits = description.raw_description.pending_workflow_task
    return waits.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED and waits.attempt <= 1


async def why_unanswered(client: Client, error: Exception, description: WorkflowExecutionDescription) -> str:
    """Why a task's worker could not be asked, and what to do.

    Args:
        client: Connected.
        error: The failure of the question.
        description: Of the run that was asked.
    """
    if isinstance(error, WorkflowQueryFailedError) and DIFFERS in error.message:
        return explained(error.message)
    if timed_out(error) or in_failed_state(error):
        return await why_silent(client, description)
    if isinstance(error, RPCError) and error.status is RPCStatusCode.FAILED_PRECONDITION:
        begins = description.execution_time  # until then no workflow task is scheduled; after it, nobody polls
        if begins is None or begins <= datetime.now(UTC):
            return await why_silent(client, description)
        known = [pair.key for pair in description.typed_search_attributes]
        return not_begun(description.id if SKILL in known else None, begins)  # what refold started can be released
    if isinstance(error, WorkflowQueryFailedError | RPCError):
        return f"this is what the server knows: {explained(error.message)}"
    return str(error)


async def why_silent(client: Client, description: WorkflowExecutionDescription) -> str:
    """Why nothing came from a task's worker in time, and what to do."""
    if (stuck := await why_stuck(client, description)) is not None:
        return stuck
    queue = description.task_queue
    pinned = description.typed_search_attributes.get(VERSION) or ""
    try:
        polls = await without_ended(client, queue, await polls_of(client, queue))
    except RPCError as error:
        return (
            f"no answer came in time, and the server does not tell whether a worker polls task queue {queue!r} "
            f"({error.message}); `{_worker_of(queue, pinned)}` starts one"
        )
    if why := not_served(queue, pinned, polls):
        return why
    tried = description.raw_description.pending_workflow_task.attempt - 1
    if tried > 1:
        return (
            f"{NO_REASON} of its workflow task, tried {tried} times: it keeps that of a first attempt alone, which was "
            f"lost with its worker. Look again later, or read the log of the worker that polls task queue {queue!r}"
        )
    return slow(queue, pinned, polls)


def slow(queue: str, pinned: str, polls: Polls) -> str:
    """The message for a task that did not answer, though a worker polls that may take it; arguments as `not_served`."""
    ago_s = polls.ago_s(_served(pinned, polls))
    return (
        f"no answer came in time. A worker polled task queue {queue!r} {ago_s:.0f} s ago: it is busy, reads a long "
        f"history, or has just stopped; `{_worker_of(queue, pinned or polls.current)}` starts another one"
    )


def not_served(queue: str, pinned: str, polls: Polls) -> str:
    """Why no worker is given a task: none polls its queue, or those that do are of another version; empty if one is.

    Args:
        queue: The task's.
        pinned: The version that the task runs on, `deployment:build`; empty if any may take it.
        polls: The workers of the queue.
    """
    ago_s = polls.ago_s(_served(pinned, polls))
    if ago_s <= POLLING_S:
        return ""
    unless = ""
    if ago_s < float("inf"):
        unless = f" (by this machine's clock, one polled {ago_s:.0f} s ago; if it still runs, that clock is ahead)"
    if version := pinned or polls.current:
        why = "the task runs on" if pinned else f"task queue {queue!r} gives its tasks to"
        way_out = f"start one with `{_worker_of(queue, version)}`{unless}"
        return f"no worker of version {version} answers, which {why}; {way_out}"
    if other := polls.newest_version():
        deployment, _, build = other.partition(":")
        return (
            f"a worker of version {other} polls task queue {queue!r}, and a version is given no task before it is the "
            f"current one; `{set_current(deployment, build)}` makes it so"
        )
    return _nobody(queue) + unless


def _served(pinned: str, polls: Polls) -> set[str]:
    """The versions whose workers are given a task."""
    return {pinned} if pinned else {polls.current, polls.ramping or polls.current}


def set_current(deployment: str, build: str) -> str:
    """The command that makes a version of a worker deployment the current one."""
    options = f"--deployment-name {quote(deployment)} --build-id {quote(build)}"
    return f"temporal worker deployment set-current-version {options}"


async def why_effects_wait(client: Client, view: TaskView) -> str:
    """Which effects of a task were sent to a task queue of their own that nobody polls; empty if none were.

    Raises:
        RPCError: The server does not tell.
    """
    out = [
        one for one in view.pending if one.queue is not None and not one.blocked and not one.held and one.due_at is None
    ]
    kinds = {one: WORKFLOWS if one.command.startswith(("skill ", "workflow ")) else ACTIVITIES for one in out}
    polls = {at: await polls_of(client, str(at[0]), at[1]) for at in {(one.queue, kinds[one]) for one in out}}
    silent = [one for one in out if polls[one.queue, kinds[one]].ago_s() > POLLING_S]
    if not silent:
        return ""
    found = await client.get_workflow_handle(view.task_id).describe()
    # The task's own worker has just answered, so that its last poll tells the server's time within a minute.
    now = (await polls_of(client, found.task_queue)).newest()
    silent = [one for one in silent if polls[one.queue, kinds[one]].ago_s(now=now) > POLLING_S]
    # A worker polls no more where all that it can do at a time is under way.
    begun = {one.activity_id for one in found.raw_description.pending_activities if one.state == _BEGUN}
    waiting = [one for one in silent if one.invocation_id not in begun]
    return "; ".join(f"{one.command} waits: {_nobody(str(one.queue))}" for one in waiting)


_BEGUN = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED


def _nobody(queue: str) -> str:
    return f"no worker answers on task queue {queue!r}; start one with `{_worker_of(queue)}`"


def _worker_of(queue: str, version: str = "") -> str:
    """The command that starts a worker of a task queue, of a version `deployment:build` if one is given."""
    command = "refold worker" if queue == QUEUE else f"refold worker --task-queue {quote(queue)}"
    deployment, _, build = version.partition(":")
    return f"{command} --deployment {quote(deployment)} --build-id {quote(build)}" if version else command


def namespace_missing(error: RPCError) -> str:
    """The namespace that the server does not have; empty if it refused for another reason."""
    missing = NamespaceNotFoundFailure()
    return next((missing.namespace for one in error.grpc_status.details if one.Unpack(missing)), "")


def is_missing(error: RPCError) -> bool:
    """Whether the server has no such task, or what else was asked for; not so where it has not even the namespace."""
    return error.status is RPCStatusCode.NOT_FOUND and not namespace_missing(error)


def server_refused(error: RPCError, what: str) -> EngineError:
    """The error for a call that the server refused or did not answer."""
    if namespace := namespace_missing(error):
        return EngineError(
            f"the server cannot {what}: it has no namespace {namespace!r}; name another with --namespace or "
            f"TEMPORAL_NAMESPACE, or make it: temporal operator namespace create --namespace {quote(namespace)}"
        )
    if error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message.lower():
        return EngineError(
            f"the server cannot {what}: {error.message}. refold's search attributes are not registered there: start a "
            f"worker, which registers them if it may, or run: {REGISTER}"
        )
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED and CROWDED in error.message:
        return NotConnected(
            f"the server cannot {what} now: the most updates that it allows are waiting for the task's worker. Nothing "
            "was changed: try again"
        )
    if _too_busy(error):
        return NotConnected(f"the server cannot {what} now: it is too busy ({error.message}); try again later")
    if server_away(error) or timed_out(error):
        return NotConnected(f"the Temporal server does not answer: {error.message}; is it up? `refold dev` starts one")
    return EngineError(f"the server cannot {what}: {error.message}")


def unwritable(error: PydanticSerializationError) -> InputRejected:
    """The refusal of text that cannot be written as JSON: cut text may end in half a surrogate pair."""
    return InputRejected(f"what is to be sent cannot be written as JSON: {shortened(str(error), REFUSAL_CHARS)}")


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn the server's refusals inside the block into errors that say what to do."""
    try:
        yield
    except RPCError as error:
        raise server_refused(error, what) from None


@contextlib.contextmanager
def of_task(task_id: str, what: str) -> Iterator[None]:
    """As `refusals`, for a call about one task, which may have been deleted since it was looked at.

    Raises:
        TaskNotFound: There is no such task.
    """
    try:
        yield
    except RPCError as error:
        if is_missing(error):
            raise TaskNotFound(task_id) from None
        raise server_refused(error, f"{what} task {task_id!r}") from None


@contextlib.contextmanager
def cancelable() -> Iterator[None]:
    """For an update: raise `CancelledError` where the caller is canceled, in place of the SDK's error, which is that of
    an update that nobody takes in time."""
    try:
        yield
    except RPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise error.__cause__ from None
        raise


async def why_stuck(client: Client, description: WorkflowExecutionDescription) -> str | None:
    """The failure of a task's latest workflow tasks; None if they did not fail.

    Args:
        client: Connected.
        description: Of the task's open run.
    """
    failed = await failed_task(client, description)
    if failed is None:
        return None
    try:
        error = await client.data_converter.decode_failure(failed.failure)
    except CodecError as unread:
        return f"its worker says why, and this process cannot read it: {unread}"
    if not isinstance(error, FailureError):
        return explained(str(error))
    return explained(error.message, error.failure.stack_trace if error.failure is not None else "")


def explained(failure: str, trace: str = "") -> str:
    """A workflow task's failure, and how to mend it.

    Args:
        failure: Temporal's message.
        trace: The stack that comes with it.
    """
    if DIFFERS in failure:
        return failure[failure.index(DIFFERS) :]
    if NOT_FITTING in failure and (marker := _MARKER.search(failure)) is not None:
        code = "release of refold" if marker[1].startswith("refold.") else "code"
        return (
            f"the task has gone on with the patch {marker[1]!r}, for which its worker's {code} does not ask "
            f"({failure}). Nothing is lost: run the {code} that asks for it, and the task goes on"
        )
    if NOT_FITTING in failure:
        return (
            f"its code has changed and does not fit what has happened already ({failure}). Nothing is lost: run the "
            "code that fits, or make the change under `ctx.patched`, and the task goes on"
        )
    if MISSED_DEADLINE in failure:
        return (
            f"{_author_in(trace) or 'its code'} did not come back within the two seconds that Temporal gives a task's "
            f"code ({MISSED_DEADLINE}): let a tool do what computes or blocks for so long, and await it with "
            "`ctx.tool`, or look for a loop that does not end. The task goes on once its worker runs the new code, or "
            "by itself if its worker merely had too little CPU"
        )
    return f"its worker cannot go on with it: {failure}"


def _author_in(trace: str) -> str:
    """The step, reducer or hook in which a stack stands, and its line; empty if the stack has none.

    Args:
        trace: As the SDK writes it, innermost call first.
    """
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace)
    above = list(takewhile(lambda frame: not _ours().search(frame[0]), frames))
    inside = [frame for frame in above if not _LIBRARY.search(frame[0])]
    if not inside or len(above) == len(frames):
        return ""
    file, line, name = inside[-1]
    return f"{name!r} ({file}, line {line})"


_LIBRARY = re.compile(r"site-packages|[/\\]lib[/\\]python3|^<frozen")
"""Of any machine's Python: the stack is a worker's."""


@cache
def _ours() -> re.Pattern[str]:
    names = "|".join(module.name for module in iter_modules([str(Path(__file__).parents[2])]))
    return re.compile(rf"[/\\]refold[/\\]({names})(\.py$|[/\\])")
