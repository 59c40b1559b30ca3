"""What tasks and engines report to traces, without a tracing library; see `refold.temporal.tracing`.

`tell` runs in workflow code: a function outside the workflow makes the spans. Nothing is told on
replay. A workflow task that fails after it has told something tells it again: at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from refold.core.events import ChildAsked, Recovered
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import DecisionMade
from refold.engine.arguments import takes

HEADER = "_tracer-data"
"""The header with the trace that a task belongs to, as Temporal's own interceptor names it."""

TELL = "refold_trace"
"""The name of the function outside the workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of a task's life, without anything that was said in it.

    Attributes:
        parent: The header with the trace.
        name: What happened: `paused`.
        at_ns: When, in nanoseconds since 1970.
        attributes: Ids, names and numbers.
        link: The header of the caller that caused it; None without one.
    """

    parent: Payload
    name: str
    at_ns: int
    attributes: dict[str, str | int | bool] = field(default_factory=dict)
    link: Payload | None = None


def tell_entry(task: Snapshot, entry: Entry) -> None:
    """Trace an entry that moved the task, or closed a gate. Does nothing if the task is not traced."""
    if TELL not in workflow.extern_functions():
        return  # first, since a task may take thousands of events in one go
    decided = isinstance(entry.event, DecisionMade) and not entry.refused
    if not (entry.moves or decided or entry.ends):
        return
    told: dict[str, str | int | bool] = {}
    if isinstance(entry.event, Recovered) and task.recovered_from is not None:
        told["refold.recovers"] = task.recovered_from
    name = f"{entry.moves[-1].to_state}" if entry.moves else entry.event.kind
    if entry.moves:
        told |= {"refold.from": entry.moves[0].from_state.value, "refold.to": entry.moves[-1].to_state.value}
    if gates := [wait.slot for wait in task.waits]:
        told["refold.waits_for"] = ", ".join(gates)
    if isinstance(entry.event, DecisionMade):
        told |= {"refold.gate": entry.event.gate, "refold.decision": entry.event.decision}
    if isinstance(entry.event, ChildAsked):
        told["refold.part"] = entry.event.invocation_id
    if entry.cause is not None:
        told["refold.cause"] = entry.cause
    tell(f"task {name}", {"refold.entry": entry.seq, "refold.event": entry.event.kind, **told})


def tell(name: str, attributes: dict[str, str | int | bool], link: Payload | None = None) -> Payload | None:
    """Trace a moment of the current task. Does nothing if the task is not traced, or on replay.

    Returns:
        The header for what this moment causes, whose spans are its children; None if nothing was traced.
    """
    make: Callable[[Moment], Payload | None] | None = workflow.extern_functions().get(TELL)
    info = workflow.info()
    parent = info.headers.get(HEADER)
    if make is None or parent is None or workflow.unsafe.is_replaying():
        return None
    about: dict[str, str | int | bool] = {"refold.task_id": info.workflow_id, "refold.skill": info.workflow_type}
    told = {**about, **attributes}
    return make(Moment(parent=parent, name=name, at_ns=workflow.time_ns(), attributes=told, link=link))


class _Tracing(Protocol):
    tracer: Any

    def going_on_from(self, client: Client, task_id: str) -> AbstractAsyncContextManager[None]: ...


def going_on_from(client: Client, task_id: str) -> AbstractAsyncContextManager[None]:
    """Continue the trace of a task with what the block starts. Does nothing if this client does not trace."""
    tracing = _tracing_of(client)
    return nullcontext() if tracing is None else tracing.going_on_from(client, task_id)


@takes()
def tracer_of(client: Client) -> Any:
    """OpenTelemetry's tracer, with which a client traces; None if it does not."""
    tracing = _tracing_of(client)
    return None if tracing is None else tracing.tracer


def _tracing_of(client: Client) -> _Tracing | None:
    interceptors: Sequence[Any] = client.config()["interceptors"]
    return next((one for one in interceptors if hasattr(one, "going_on_from")), None)
