"""What is sent to a task that is there: messages, decisions, resolutions, and the request to cancel."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn, TypeVar

from pydantic_core import PydanticSerializationError
from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import InputRejected
from refold.core.events import CANCELED
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TERMINAL, Status, TaskState
from refold.divergence import DIFFERS
from refold.engine import CodeChanged, Decision, NotConnected, NoWorker, Taken, TaskNotFound, TaskView, WaitView
from refold.engine.decisions import decision_of, gate_of, holder_of
from refold.engine.refusals import is_over, nothing_to_cancel
from refold.engine.view import late_gate
from refold.temporal.client import views
from refold.temporal.client.connection import UPDATE_PATIENCE, Connection
from refold.temporal.client.crowds import NoTurn
from refold.temporal.client.errors import (
    in_failed_state,
    of_task,
    server_refused,
    unwritable,
    why_silent,
)
from refold.temporal.client.fleet.fitting import of_fitting_worker
from refold.temporal.client.index import search
from refold.temporal.data import signing
from refold.temporal.data.payloads import codec_in
from refold.temporal.data.wire import CANCEL_REASON, CODE_DIFFERS, REFUSED_LATE, Accepted, SignedDecision

A = TypeVar("A")


ABORTED = re.compile("workflow update was aborted|due to unexpected workflow task failure")
"""The server's words for an update that nobody has taken: its workflow task failed, also since something else came to
the task as it was about to end its run; or the run went on in a new one."""

UNPROCESSED = "UnprocessedUpdate"
"""The type of the server's refusal of an update that the worker had left out of the workflow task that it completed."""

NO_MORE_SIGNALS = "execution limit for signal events"
"""The server's words for a signal to a run that has taken as many as it takes."""

TRIES = 5
"""How many times an update is sent that the server gives back, though the task goes on meanwhile."""

AGAIN_S = 0.2
"""The pause before such an update is sent again, in seconds."""


async def update(
    connection: Connection,
    task_id: str,
    name: str,
    *arguments: Any,
    update_id: str | None = None,
    run_id: str | None = None,
    answer: type[A] = Accepted,  # type: ignore[assignment]
    tries: int = TRIES,
) -> A:
    """Send an update to a task, to its run `run_id` only if one is given, and wait until the task has accepted it.

    It is sent `tries` times at most where the server gives it back.

    Returns:
        The task's answer, of type `answer`.

    Raises:
        InputRejected: The task refuses it, or has ended.
        NoWorker: No worker took it in time.
        EngineError: The server refuses, or does not answer.
    """
    handle = connection.client.get_workflow_handle(task_id, run_id=run_id)
    send = partial(
        handle.execute_update, name, args=arguments, id=update_id, rpc_timeout=UPDATE_PATIENCE, result_type=answer
    )
    in_turn = partial(connection.crowds.of(task_id).send, send)
    try:
        found: A = await of_fitting_worker(connection.client, task_id, in_turn)
    except PydanticSerializationError as error:
        raise unwritable(error) from None
    except NoTurn:
        raise await _not_taken(connection, task_id, name, sent=False) from None
    except RPCTimeoutOrCancelledError:
        raise await _not_taken(connection, task_id, name) from None
    except (WorkflowUpdateFailedError, RPCError) as error:
        again = partial(update, connection, task_id, name, *arguments, update_id=update_id, answer=answer)
        given_back = _is_given_back(error)
        if given_back and tries > 1 and not (await views.look(connection, task_id)).note:
            await asyncio.sleep(AGAIN_S)
            return await again(run_id=run_id, tries=tries - 1)
        if given_back or (isinstance(error, RPCError) and in_failed_state(error)):
            raise await _not_taken(connection, task_id, name) from None
        if update_id is not None and _type_of(error) == REFUSED_LATE:
            # The server keeps this refusal for the update's id, perhaps since long ago.
            return await again(run_id=run_id, tries=tries, update_id=None)
        if isinstance(error, WorkflowUpdateFailedError):
            _raise_refusal(task_id, name, error)
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise server_refused(error, f"reach task {task_id!r}") from None
        view = await views.look(connection, task_id)
        if run_id is None and view.lifecycle not in TERMINAL:  # it went on in a new run, which has not seen the update
            if tries <= 1:
                raise await _not_taken(connection, task_id, name) from None
            await asyncio.sleep(AGAIN_S)
            return await again(tries=tries - 1)
        raise is_over(task_id, view.status, view.lifecycle) from None
    return found


async def look_after(connection: Connection, task_id: str, name: str) -> TaskView:
    """The task once it has taken an update.

    Raises:
        Taken: The server does not answer any more; the message says that the update is not to be sent again.
    """
    try:
        return await views.look(connection, task_id)
    except NotConnected as error:
        raise Taken(
            f"task {task_id!r} has taken the {_SAID.get(name, name)}, which is not to be sent again; how it stands now "
            f"is not known: {error}"
        ) from None


def _is_given_back(error: WorkflowUpdateFailedError | RPCError) -> bool:
    """Whether nobody has taken the update: neither the task nor the code of its skill has judged it."""
    if isinstance(error, RPCError):
        return ABORTED.search(error.message) is not None
    return _type_of(error) == UNPROCESSED


def _type_of(error: WorkflowUpdateFailedError | RPCError) -> str | None:
    """The type of the failure that an update ended with."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


async def _not_taken(connection: Connection, task_id: str, name: str, *, sent: bool = True) -> NoWorker:
    name = _SAID.get(name, name)
    why = await why_silent(connection.client, await connection.describe(task_id))
    kind = CodeChanged if DIFFERS in why else NoWorker
    then = "It may still take it later: look at the task before you send it again"
    if not sent:
        then = "It was not sent, since others waited before it: send it again later"
    return kind(f"task {task_id!r} cannot take the {name}: {why}. {then}")


async def decide(
    connection: Connection, task_id: str, decisions: Sequence[Decision], *, approver: str, vouched_by: str | None
) -> str:
    """See `Engine.decide_together`. Returns the task that took the decisions: the named one, or a part of it."""
    try:
        view = await views.told(connection, task_id)
    except views.Silent as silent:
        raise NoWorker(f"task {task_id!r} cannot be asked for its gates: {silent}") from None
    late = await _timed_out(connection, task_id) if view.lifecycle is TaskState.FAILED else None
    met = [gate_of(view, one, late) for one in decisions]
    asked_by = {wait.gate: wait.asked_by or task_id for wait in view.waiting_for}
    holder = holder_of(task_id, [one.gate for one in met], asked_by)
    said_at = datetime.now(UTC)
    made = [
        decision_of(one, gate, approver=approver, vouched_by=vouched_by, said_at=said_at)
        for one, gate in zip(decisions, met, strict=True)
    ]
    await update(connection, holder, "decide", *(_signed(holder, one) for one in made))
    return holder


async def cancel(connection: Connection, task_id: str, *, reason: str, by: str | None) -> TaskView:
    """Ask a task to cancel, and wait a little until it has ended.

    Raises:
        InputRejected: It has ended already, or ended in another way before it took the request.
        NoWorker: It has not canceled yet, and nobody can say when.
        CodeChanged: The same, since its worker's code differs from what was recorded.
        EngineError: The server refuses, or does not answer.
    """
    description = await connection.describe(task_id)
    if search.as_shown(description)[0] in TERMINAL:  # it may still compensate, or take late grants
        raise await _nothing_to_cancel(connection, task_id)
    handle = connection.client.get_workflow_handle(task_id)
    try:
        with of_task(task_id, "cancel"):
            encrypted = bool(reason) and codec_in(connection.client.data_converter) is not None
            if encrypted or by:
                with _unless_full():
                    await handle.signal(CANCEL_REASON, args=[reason, by])
            if encrypted:
                reason = ""
            await handle.cancel(reason=reason or CANCELED)
    except TaskNotFound:  # it has ended meanwhile
        raise await _nothing_to_cancel(connection, task_id) from None
    await views.closed(connection, task_id)
    try:
        view = await views.told(connection, task_id)
    except views.Silent as silent:
        raise NoWorker(
            f"task {task_id!r} is not canceled yet: {silent}. The server keeps the request until a worker can carry it "
            f"out. `temporal workflow terminate --workflow-id {shlex.quote(task_id)}` ends the task at once, but "
            "undoes nothing and writes no last entry"
        ) from None
    if view.lifecycle in TERMINAL and view.status is not Status.CANCELED:  # what it waited for came with the request
        raise nothing_to_cancel(task_id, view.status)
    if view.differs and view.lifecycle not in TERMINAL:
        raise CodeChanged(f"task {task_id!r} is not canceled yet, but will be once a worker continues it: {view.note}")
    return view


@contextmanager
def _unless_full() -> Iterator[None]:
    """A task that takes no more signals can be canceled all the same: its journal then names nobody."""
    try:
        yield
    except RPCError as error:
        if NO_MORE_SIGNALS not in error.message:
            raise


async def _nothing_to_cancel(connection: Connection, task_id: str) -> InputRejected:
    return nothing_to_cancel(task_id, (await views.look(connection, task_id)).status)


async def _timed_out(connection: Connection, task_id: str) -> WaitView | None:
    """The gate whose time ran out, while a late grant is still recorded."""
    try:
        snapshot = await connection.query(task_id, "snapshot", kind=Snapshot)
    except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError):
        return None
    return late_gate(snapshot)


def _signed(task_id: str, decision: DecisionMade) -> SignedDecision:
    if decision.asserted_by is None:
        return SignedDecision(**dict(decision))
    key = signing.approval_key()
    if key is None:
        raise InputRejected(
            f"{decision.asserted_by} cannot vouch for a decision without the key that it shares with the workers: set "
            f"{signing.ENV}"
        )
    return SignedDecision(**dict(decision), signature=signing.signature(task_id, decision, key))


_SAID = {"decide": "decision", "resolve": "resolution", "seal": "request to seal it"}
"""The words for an update, where they are not its name."""


def _raise_refusal(task_id: str, name: str, error: WorkflowUpdateFailedError) -> NoReturn:
    cause, why = error.cause, str(error.cause)
    if isinstance(cause, ApplicationError) and cause.type in (CODE_DIFFERS, InputRejected.__name__, REFUSED_LATE):
        why = cause.message  # without the type, which its text begins with
    if _type_of(error) == CODE_DIFFERS:
        raise CodeChanged(f"task {task_id!r} has not taken the {_SAID.get(name, name)}: {why}") from None
    raise InputRejected(why) from None
