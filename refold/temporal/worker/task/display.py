"""What a running task publishes: search attributes, the Temporal UI's details, and one log line a change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from datetime import datetime
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from refold.core.commands import AskApproval, AskUser
from refold.core.fold.wanted import finished
from refold.core.lifecycle import Ending, Status, TaskState
from refold.core.schema import type_name
from refold.core.values import shortened
from refold.seen import entries, meters
from refold.seen.logs import logger
from refold.temporal.data.inputs import as_logged
from refold.temporal.data.search_attributes import SKILL, STATE, STATE_AT, STATUS, STATUS_AT, state_since

if TYPE_CHECKING:
    from refold.core.fold.journal import Entry
    from refold.core.fold.snapshot import Pending, Snapshot
    from refold.core.waits import Wait

NAME_CHARS = 200
"""The longest name of a sender in a log line, in characters; a longer one is cut."""

MOST_LISTED = 20
"""The most questions, and the most running effects, in the Temporal UI's details, which are made with each entry."""

LINE_CHARS = 500
"""The longest text in the Temporal UI's details, in characters; a longer one is cut."""

T = TypeVar("T")
log = logger("refold.task")

REFUSED: dict[tuple[str, str], Callable[..., None]] = {}
"""Where each worker of this process records refused updates, by namespace and task queue: `RefusalRecord.note`."""


SILENT: set[str] = set()
"""Runs that a `Replayer` replays: what comes after the end of their history never happened, and is not logged."""


class Display:
    """Publishes one task; upserts a search attribute only after a change."""

    def __init__(self, base: Snapshot, *, later: bool) -> None:
        # A run after continue-as-new inherits the attributes; a task that was not started by refold's client has none.
        self.shown = (base.lifecycle, base.status) if base.seq or later else (TaskState.RUNNING, Status.WORKING)
        info = workflow.info()
        # Nobody could say when a schedule's task would start, so its worker writes the times.
        known = info.typed_search_attributes
        self.known = known.get(SKILL) is not None and known.get(STATUS_AT) is not None
        self.last = base
        # A run after continue-as-new inherits it; a new task has waited for a worker since the server took it.
        # Tasks that an earlier release started go on without it, as their histories have it.
        self.says_since = not self.known or known.get(STATE_AT) is not None
        self.since = (state_since(known) or base.status_at or base.at) if base.seq else info.workflow_start_time
        if base.seq:
            workflow.set_current_details(details(base))  # until its first entry, which may come in weeks

    def update(self, snapshot: Snapshot, entry: Entry, bug: str = "") -> None:
        """Show the task as it is after `entry`. Called from workflow code only.

        Args:
            bug: The file and line of the author's code that raised; empty if none did.
        """
        workflow.set_current_details(details(snapshot))
        before, since = self.last, self.since
        self.last = snapshot
        if snapshot.lifecycle is not before.lifecycle:
            self.since = entry.at
        self._upsert(snapshot)
        if not workflow.unsafe.is_replaying() and workflow.info().run_id not in SILENT:
            _log(snapshot, entry)
            if bug:
                log.error("skill_bug", task_id=snapshot.task_id, seq=entry.seq, skill=snapshot.skill, at=bug)
            if meters.recording() and _first_time(entry):
                _count(before, entry, snapshot, since)

    def _upsert(self, snapshot: Snapshot) -> None:
        # Temporal's own execution status shows completed, failed and canceled, but not rejected.
        if finished(snapshot) and snapshot.ending is not Ending.REJECTED:
            return
        shown = (snapshot.lifecycle, snapshot.status)
        if shown == self.shown and self.known:
            return
        status_at = snapshot.status_at or snapshot.at
        updates: list[SearchAttributeUpdate[Any]] = [
            STATE.value_set(snapshot.lifecycle.value),
            STATUS.value_set(snapshot.status.value),
            STATUS_AT.value_set(status_at),
        ]
        if self.says_since and self.since > status_at:
            updates.append(STATE_AT.value_set(self.since))
        if not self.known:
            updates.append(SKILL.value_set(snapshot.skill))
        self.shown, self.known = shown, True
        workflow.upsert_search_attributes(updates)


COUNTED = 10_000
"""How many runs of tasks a process remembers for `_first_time`."""

_counted: OrderedDict[str, int] = OrderedDict()


def _first_time(entry: Entry) -> bool:
    """Whether this process takes an entry for the first time. A workflow task whose answer the server refused, or did
    not get in time, is performed once more, and that is no replay."""
    run_id = workflow.info().run_id
    if entry.seq <= _counted.get(run_id, 0):
        return False
    _counted[run_id] = entry.seq
    _counted.move_to_end(run_id)
    while len(_counted) > COUNTED:
        _counted.popitem(last=False)
    return True


def _count(before: Snapshot, entry: Entry, after: Snapshot, since: datetime) -> None:
    try:
        entries.entered(before, entry, after, since)
    except Exception:
        log.exception("not_counted", task_id=after.task_id, seq=entry.seq)  # what a task does depends on no metric


def details(snapshot: Snapshot) -> str:
    """The task's running effects and what it waits for, in Markdown, for the Temporal UI."""
    # Markdown needs an empty line before a list.
    parts = [f"**{snapshot.status}** ({snapshot.lifecycle}), entry {snapshot.seq}"]
    parts += [_line(text) for text in (snapshot.reason, snapshot.progress) if text]
    waits, task_id = snapshot.open_waits, quote(snapshot.task_id)
    listed = [*_first(_waiting, waits), *_first(_going, snapshot.pending.values())]
    if listed:
        parts.append("\n".join(listed))
    if any(isinstance(wait.ask, AskUser) and wait.ask.callback is None for wait in waits):
        answer = f"refold answer {task_id} TEXT"
        parts.append(f"Answer with `{answer}`, or with a signal or update named `message`.")
    if any(isinstance(wait.ask, AskApproval) for wait in waits):
        decide = f"refold approve {task_id}"
        parts.append(f"Decide with `{decide}` or `refold deny`, or with a signal or update named `decide`.")
    if [one for one in snapshot.pending.values() if one.blocked]:
        parts.append(f"Blocked: `refold resolve {task_id} --retry`, or `--outcome JSON`, goes on.")
    return "\n\n".join(parts)


def _first(line: Callable[[T], str], them: Collection[T]) -> list[str]:
    more = len(them) - MOST_LISTED
    return [line(one) for one in islice(them, MOST_LISTED)] + ([f"- and {more} more"] if more > 0 else [])


def _waiting(wait: Wait) -> str:
    if isinstance(wait.ask, AskApproval):
        until = f", until {wait.timeout_at:%Y-%m-%d %H:%M:%S} UTC" if wait.timeout_at else ""
        return f"- waits for a decision at `{wait.slot}` ({wait.gate}{until}): {_line(wait.ask.message.text)}"
    fits = f" (a {type_name(wait.ask.expect)})" if wait.ask.expect is not None else ""
    if wait.ask.callback is not None:
        return f"- waits for a call to the address of `{wait.slot}`{fits}: {_line(wait.ask.message.text)}"
    return f"- waits for an answer to `{wait.slot}`{fits}: {_line(wait.ask.message.text)}"


def _going(pending: Pending) -> str:
    command = pending.command
    line = f"- {command.kind} `{command.subject}`"
    if command.id != command.subject:
        line += f" ({command.id})"
    if pending.due_at is not None:
        line += f", {'again ' if pending.failure else ''}due at {pending.due_at:%Y-%m-%d %H:%M:%S} UTC"
    elif pending.attempt > 1:
        line += f", attempt {pending.attempt}"
    return f"{line}, after: {_line(pending.failure)}" if pending.failure else line


def _line(text: str) -> str:
    """Text joined to one line and cut at `LINE_CHARS`."""
    joined = " ".join(text.split())
    return joined if len(joined) <= LINE_CHARS else f"{joined[: LINE_CHARS - 1]}…"


def note_refused(task: Snapshot, trigger: str, reason: str, *, by: str | None, seq: int | None = None) -> None:
    """Log a refused event, without its content. Called from workflow code only, and not on a replay.

    Args:
        task: The task.
        trigger: The kind of the event, or the update.
        reason: Why it is refused.
        by: Who sent it, as the sender says.
        seq: The number of its journal entry; None if it has none.
    """
    state = task.lifecycle.value
    info = workflow.info()
    record = REFUSED.get((info.namespace, info.task_queue))
    if seq is None and record is not None:
        record(task_id=task.task_id, trigger=trigger, by=by or "", reason=reason, at=workflow.time())
    why = as_logged(reason)
    log.warning("event_refused", task_id=task.task_id, seq=seq, state=state, trigger=trigger, by=by, reason=why)


def count_refused(task: Snapshot, trigger: str, reason: str) -> None:
    """Count a refused update, which has no journal entry. Called by validators, which no replay calls.

    Args:
        task: The task.
        trigger: The update.
        reason: One of `refold.seen.metrics.REFUSED_FOR`.
    """
    if meters.recording():
        entries.refused(task, trigger, reason)


def note_released(task: Snapshot, *, by: str | None) -> None:
    """Log that somebody begins a task that was held or delayed. Called from workflow code only, and not on a replay."""
    log.info("task_released", task_id=task.task_id, by=by)


def said_by(event: object) -> str | None:
    """The name that an event, or the data of one, gives as its sender's; None if it gives none."""
    fields = event if isinstance(event, dict) else getattr(event, "__dict__", {})
    names = (fields.get(name) for name in ("approver", "sender", "by"))
    return next((shortened(name, NAME_CHARS) for name in names if isinstance(name, str)), None)


def _metadata(snapshot: Snapshot, entry: Entry) -> dict[str, Any]:
    """What is known of the cause of a transition: who said what, and when by the sender's clock."""
    event = entry.event
    known: dict[str, Any] = {"seq": entry.seq, "skill": snapshot.skill, "cause": event.kind, "by": said_by(event)}
    for name in ("decision", "gate", "asserted_by", "comment", "said_at"):
        value = getattr(event, name, None)
        known[name] = value.isoformat() if isinstance(value, datetime) else value
    return {name: _line(value) if name == "comment" else value for name, value in known.items() if value is not None}


def _log(snapshot: Snapshot, entry: Entry) -> None:
    if entry.refused:
        note_refused(snapshot, entry.event.kind, entry.refused, by=said_by(entry.event), seq=entry.seq)
    for move in entry.moves:
        log.info(
            "state_transition",
            task_id=snapshot.task_id,
            **{"from": move.from_state.value, "to": move.to_state.value},
            trigger=move.event.value,
            timestamp=entry.at.isoformat(),
            metadata=_metadata(snapshot, entry),
        )
    if snapshot.ending is Ending.CANCELED and not entry.refused:
        log.info(
            "state_transition",
            task_id=snapshot.task_id,
            **{"from": "open", "to": snapshot.lifecycle.value},
            trigger="canceled",
            timestamp=entry.at.isoformat(),
            metadata=_metadata(snapshot, entry),
        )
