"""What a task asked Temporal for: as its history recorded it, and as today's code asks for it, in one form.

Left out is what Temporal does not compare or refold does not decide: cancellations, patches, answers to updates, and
what was asked for and canceled in the same workflow task, which leaves no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from refold.temporal.data.wire import CHAT_ACTIVITY, LLM_ACTIVITY, RESULT_MEMO, TOOL_ACTIVITIES
from refold.temporal.replay.watched import Given
from refold.temporal.worker.activation.batches import OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One thing that a task asked for.

    Attributes:
        kind: `activity`, `timer`, `child`, `signal`, `attributes`, `memo` or `end`.
        at: The time of the workflow task, which is the time of the entries that it wrote.
        id: The activity's or child's id, who a signal is for, or how the run ended.
        name: The activity's, child's or signal's type.
        inputs: Its arguments, by name where they have names; those of a history as history has them.
        seconds: How long a timer takes.
        summary: What people see beside it, which is the command's id; likewise.
    """

    kind: str
    at: datetime
    id: str = ""
    name: str = ""
    inputs: tuple[tuple[str, Payload], ...] = ()
    seconds: float | None = None
    summary: Payload | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What Temporal compares, and who a signal is for."""
        return self.kind, self.id, self.name

    @property
    def words(self) -> str:
        """For people."""
        match self.kind:
            case "activity":
                return f"{_effect(self.name)} ({self.id})"
            case "timer":
                return f"a timer of {self.seconds:g} s"
            case "child":
                return f"part or child workflow {self.name!r} ({self.id})"
            case "signal":
                return f"signal {self.name!r} to {self.id!r}"
            case "attributes":
                return "a change of the task's lifecycle"
            case "memo":
                return "a memo"
            case _:
                return f"the task {self.id}"


def _effect(name: str) -> str:
    if name in (LLM_ACTIVITY, CHAT_ACTIVITY):
        return "a model call"
    return f"tool {name.removeprefix(TOOL_ACTIVITIES)!r}" if name.startswith(TOOL_ACTIVITIES) else f"activity {name!r}"


def recorded_in(events: Iterable[HistoryEvent]) -> Iterator[Asked]:
    """What a history recorded, in order."""
    at = datetime.fromtimestamp(0, UTC)
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            at = event.event_time.ToDatetime(UTC)
        elif (found := _of_event(event, at)) is not None:
            yield found


_ENDED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "fails",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "is canceled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "goes on in a new run",
}


def _of_event(event: HistoryEvent, at: datetime) -> Asked | None:
    summary = event.user_metadata.summary if event.user_metadata.HasField("summary") else None
    if event.event_type in _ENDED:
        return Asked(kind="end", at=at, id=_ENDED[event.event_type], inputs=_numbered(_left(event)))
    match event.WhichOneof("attributes"):
        case "activity_task_scheduled_event_attributes":
            task = event.activity_task_scheduled_event_attributes
            args = _numbered(task.input.payloads)
            return Asked(
                kind="activity", at=at, id=task.activity_id, name=task.activity_type.name, inputs=args, summary=summary
            )
        case "timer_started_event_attributes":
            timer = event.timer_started_event_attributes
            if timer.timer_id == str(OWN):
                return None
            return Asked(kind="timer", at=at, seconds=_seconds(timer.start_to_fire_timeout), summary=summary)
        case "start_child_workflow_execution_initiated_event_attributes":
            child = event.start_child_workflow_execution_initiated_event_attributes
            args = _numbered(child.input.payloads)
            return Asked(kind="child", at=at, id=child.workflow_id, name=child.workflow_type.name, inputs=args)
        case "signal_external_workflow_execution_initiated_event_attributes":
            signal = event.signal_external_workflow_execution_initiated_event_attributes
            args = _numbered(signal.input.payloads)
            to = signal.workflow_execution.workflow_id
            return Asked(kind="signal", at=at, id=to, name=signal.signal_name, inputs=args)
        case "upsert_workflow_search_attributes_event_attributes":
            fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
            # The SDK's own, beside a patch.
            return None if set(fields) == {"TemporalChangeVersion"} else _attributes(fields, at)
        case "workflow_properties_modified_event_attributes":
            memo = event.workflow_properties_modified_event_attributes.upserted_memo.fields
            return Asked(kind="memo", at=at, inputs=_named(memo))
        case _:
            return None


def _left(event: HistoryEvent) -> Sequence[Payload]:
    """What a run left behind: its result, the details of its failure, or what the next run begins with."""
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            return event.workflow_execution_completed_event_attributes.result.payloads
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            failure = event.workflow_execution_failed_event_attributes.failure
            return failure.application_failure_info.details.payloads
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
            return event.workflow_execution_continued_as_new_event_attributes.input.payloads
        case _:
            return ()


def given_in(given: Sequence[Given]) -> list[Asked]:
    """What today's code asks for, in order."""
    canceled = {key for one in given if (key := _cancels(one)) is not None}
    found = []
    for one in given:
        if one.command is not None and _starts(one) not in canceled:
            asked = _of_command(one.command, one.at)
            if asked is not None:
                found.append(asked)
    return found


def _starts(one: Given) -> tuple[int, str, int] | None:
    kind = one.command.WhichOneof("variant")
    if kind not in ("schedule_activity", "start_timer", "start_child_workflow_execution"):
        return None
    return one.length, kind, getattr(one.command, kind).seq


def _cancels(one: Given) -> tuple[int, str, int] | None:
    """What a command cancels, as `_starts` names it."""
    if one.command is None:
        return None
    match one.command.WhichOneof("variant"):
        case "request_cancel_activity":
            return one.length, "schedule_activity", one.command.request_cancel_activity.seq
        case "cancel_timer":
            return one.length, "start_timer", one.command.cancel_timer.seq
        case "cancel_child_workflow_execution":
            child = one.command.cancel_child_workflow_execution.child_workflow_seq
            return one.length, "start_child_workflow_execution", child
        case _:
            return None


def _of_command(said: Any, at: datetime) -> Asked | None:
    kind = said.WhichOneof("variant")
    one = getattr(said, kind)
    summary = said.user_metadata.summary if said.user_metadata.HasField("summary") else None
    match kind:
        case "schedule_activity":
            if one.seq == OWN:
                return None
            args = _numbered(one.arguments)
            return Asked(
                kind="activity", at=at, id=one.activity_id, name=one.activity_type, inputs=args, summary=summary
            )
        case "start_timer":
            if one.seq == OWN:
                return None
            return Asked(kind="timer", at=at, seconds=_seconds(one.start_to_fire_timeout), summary=summary)
        case "start_child_workflow_execution":
            return Asked(kind="child", at=at, id=one.workflow_id, name=one.workflow_type, inputs=_numbered(one.input))
        case "signal_external_workflow_execution":
            to = one.workflow_execution.workflow_id or one.child_workflow_id
            return Asked(kind="signal", at=at, id=to, name=one.signal_name, inputs=_numbered(one.args))
        case "upsert_workflow_search_attributes":
            return _attributes(one.search_attributes.indexed_fields, at)
        case "modify_workflow_properties":
            return Asked(kind="memo", at=at, inputs=_named(one.upserted_memo.fields))
        case _:
            return _end(kind, one, at)


def _end(kind: str, one: Any, at: datetime) -> Asked | None:
    left: Sequence[Payload] = ()
    match kind:
        case "complete_workflow_execution":
            how, left = "completes", [one.result]
        case "fail_workflow_execution":
            how, left = "fails", one.failure.application_failure_info.details.payloads
        case "cancel_workflow_execution":
            how = "is canceled"
        case "continue_as_new_workflow_execution":
            how, left = "goes on in a new run", one.arguments
        case _:
            return None
    return Asked(kind="end", at=at, id=how, inputs=_numbered(left))


def left_behind(asked: Sequence[Asked]) -> Payload | None:
    """What a run that has ended left behind, the journal in it: its result, or what the next run begins with."""
    if not asked or asked[-1].kind != "end":
        return None
    for one in (asked[-1], *(one for one in reversed(asked) if one.kind == "memo")):
        for name, payload in one.inputs:
            if one.kind == "end" or name == RESULT_MEMO:
                return payload
    return None


def _attributes(fields: Any, at: datetime) -> Asked:
    return Asked(kind="attributes", at=at, inputs=_named(fields))


def _numbered(payloads: Iterable[Payload]) -> tuple[tuple[str, Payload], ...]:
    return tuple((str(number), payload) for number, payload in enumerate(payloads, 1))


def _named(fields: Any) -> tuple[tuple[str, Payload], ...]:
    return tuple((name, fields[name]) for name in sorted(fields))


def _seconds(duration: Any) -> float:
    return float(duration.ToTimedelta().total_seconds())
