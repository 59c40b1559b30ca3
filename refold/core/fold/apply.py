"""The fold: one event in; the next snapshot and one journal entry out.

Rule 1: every change to a task happens in `advance`.
Rule 2: nothing here reads a clock, draws a random number or waits.
Rule 3: the skill is called only while the task is running; other events are journaled and held until then.
Rule 4: a refused event changes nothing but the entry number and the count of refusals.

`questions`, `gates`, `failures` and `ending` make the changes of each kind of event; `delivery` then calls the skill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from datetime import datetime

from refold.core.authoring.skill import Live, Skill, skill_id
from refold.core.chat import Previous
from refold.core.commands import PartBudget
from refold.core.events import (
    CANCELED,
    EVENT,
    RESULT_TYPES,
    BackoffOver,
    CancelRequested,
    ChildAsked,
    CommandFailed,
    DependencyResolved,
    Event,
    Forked,
    GateTimedOut,
    Recovered,
    ReminderDue,
    UserMessage,
    admitted,
)
from refold.core.fold import ending, failures, gates, questions
from refold.core.fold.delivery import act_on_failure, settle
from refold.core.fold.draft import Draft, watcher
from refold.core.fold.journal import Entry
from refold.core.fold.questions import take_early
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import PastEvent, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Ending, TaskEvent

ANSWERS = "refold.answers"
"""The patch with which a recovered or forked task takes over every recorded answer of `ctx.patched`, and asks refold's
own patches again."""


def planned(
    skill: Skill,
    task_id: str,
    at: datetime,
    *,
    stream: bool = False,
    parent: str | None = None,
    budget: PartBudget | None = None,
    owner: str | None = None,
    context: str | None = None,
    previous: Previous | None = None,
    started_by: tuple[str, ...] = (),
) -> Snapshot:
    """A task before its first event."""
    return Snapshot(
        task_id=task_id,
        skill=skill_id(skill),
        at=at,
        skill_version=skill.options.version,
        stream=stream,
        parent=parent,
        budget=budget,
        owner=owner,
        context=context,
        threads={} if previous is None else previous.threads,
        previous=None if previous is None else previous.task_id,
        started_by=started_by,
    )


def advance(
    skill: Skill,
    snapshot: Snapshot,
    event: Event,
    at: datetime,
    *,
    live: Live | None = None,
    patched: Callable[[str], bool] | None = None,
) -> tuple[Snapshot, Entry]:
    """Take one event. The only way a task ever changes.

    Args:
        skill: The task's skill.
        snapshot: The task before the event.
        event: What happened.
        at: When it happened; a time before the snapshot's is replaced by the snapshot's.
        live: The cache of the task's running step, if the caller has one.
        patched: Answers `ctx.patched(id)` when a patch id is asked for the first time; None answers True.

    Returns:
        The task after the event, and its journal entry. Never raises for a bad event, which is refused, nor for a bug
        of the skill, which fails the task.
    """
    at, event = max(at, snapshot.at), admitted(event)
    return _taken(Draft(skill, snapshot, event, at, live, patched or (lambda _: True), refold=fold))


def fold(
    skill: Skill,
    base: Snapshot,
    entries: Iterable[Entry | PastEvent],
    *,
    skipped: Set[str] = frozenset(),
    parks: bool = False,
    patched: Callable[[str], bool] = lambda _: True,
) -> Snapshot:
    """The snapshot after these entries, as `advance` returned it when it wrote them.

    Args:
        skill: The task's skill.
        base: The task before the first of the entries.
        entries: A journal, or a part of it. If entries are missing, the others keep their numbers.
        skipped: Ids of commands whose final failure is not delivered, so that the task sends them again. Used by
            recovery; the numbers of later entries do not change.
        parks: Coroutines side by side go on at such a failure as they did, except the one that it came to.
        patched: Answers whether what `ANSWERS` says holds, asked only where it matters; False for a task that an
            earlier release recovered or forked.
    """
    snapshot, live = base, Live()
    for entry in entries:
        if snapshot.seq != entry.seq - 1:
            snapshot = snapshot.changed({"seq": entry.seq - 1})
        draft = Draft(
            skill, snapshot, entry.event, entry.at, live, recorded=entry.patches, skipped=skipped, parks=parks,
            refold=fold,
        )  # fmt: skip
        snapshot, _ = _taken(draft)
        unasked = {id: yes for id, yes in entry.patches.items() if id not in snapshot.patches}
        if unasked and patched(ANSWERS):
            snapshot = snapshot.changed({"patches": {**snapshot.patches, **unasked}})
    return snapshot


def with_kept_patches(snapshot: Snapshot, patched: Callable[[str], bool]) -> Snapshot:
    """The snapshot of a recovered or forked task, which asks refold's own patches itself; `patched` as for `fold`."""
    if snapshot.kept_patches == snapshot.patches or not patched(ANSWERS):
        return snapshot
    return snapshot.changed({"patches": snapshot.kept_patches})


def _taken(draft: Draft) -> tuple[Snapshot, Entry]:
    try:
        _take(draft)
        outcome = draft.outcome()
    except Exception as bug:  # noqa: BLE001 - a bug of the core must not stop the task from answering
        draft = Draft(draft.skill, draft.base, draft.event, draft.at)
        ending.crash(draft, bug)
        outcome = draft.outcome()
    if (watch := watcher.get()) is not None:
        watch(draft)
    draft.live = None  # else a step that is dropped would wait for the collector of cycles, which closes it with noise
    return outcome


def _take(draft: Draft) -> None:
    """Take the draft's event, or refuse it."""
    draft.refused = refusal(draft.skill, draft.base, draft.event, draft.at, draft.patched)
    if draft.refused:
        draft.changes["refused"] = draft.base.refused + 1
    elif not draft.base.ended:
        settle(draft, _open_task_took(draft, draft.event))
        while draft.early and (taken := take_early(draft)) is not None:
            settle(draft, taken)
        draft.announce()
        draft.send_out()
    elif isinstance(draft.event, CommandFailed):
        act_on_failure(draft, draft.event)
    else:
        ending.take_late(draft, draft.event)


def _open_task_took(draft: Draft, event: Event) -> Sequence[Event]:
    """Make an event's changes to an open task. Returns the events to deliver to the skill."""
    if isinstance(event, RESULT_TYPES):
        return failures.take_result(draft, event)
    match event:
        case UserMessage():
            return questions.take_message(draft, event)
        case CommandFailed():
            return [event]
        case BackoffOver(invocation_id=id):
            _backoff_over(draft, id)
        case ChildAsked():
            questions.part_asked(draft, event)
        case CancelRequested(reason=reason):
            ending.end(draft, Ending.CANCELED, reason or CANCELED)
        case DecisionMade():
            return gates.decided(draft, event)
        case ReminderDue(gate=gate):
            gates.remind(draft, gate)
        case GateTimedOut(gate=gate):
            return gates.timed_out(draft, gate)
        case DependencyResolved():
            return failures.resolved(draft, event)
        case Recovered(again=again, in_time=in_time, by=by):
            once_more = None if again is None else EVENT.validate_python(again)
            return _start_from_other(draft, once_more, by, in_time=in_time)
        case Forked(by=by):
            return _start_from_other(draft, None, by)
        case _:
            raise AssertionError(f"{event.kind} is refused while the task is open")
    return []


def _backoff_over(draft: Draft, id: str) -> None:
    pending = draft.pending[id]
    draft.change_pending(id, retries=pending.attempt, due_at=None, started=pending.blocked)
    others = (one for one in draft.pending.values() if one.due_at and not one.blocked)
    if not pending.blocked and all(one.command.kind == "sleep" for one in others):  # none waits for its next retry
        draft.move(TaskEvent.RETRY)


def _start_from_other(draft: Draft, again: Event | None, by: str | None, *, in_time: bool = False) -> Sequence[Event]:
    """Start a recovered or forked task; `again` is an event of the other task, delivered once more."""
    if by is not None and by not in draft.base.started_by:
        draft.changes["started_by"] = (*draft.base.started_by, by)
    draft.move(TaskEvent.START)
    if draft.waits:
        draft.move(TaskEvent.PAUSE_FOR_APPROVAL)
    match again:
        case None:
            return []
        case UserMessage() if draft.state is not None:
            return questions.take_message(draft, again, in_time=in_time)
        case UserMessage():
            draft.note_message(again)
            return [again]
        case DecisionMade():
            return gates.decided_again(draft, again)
        case result if isinstance(result, RESULT_TYPES):
            return failures.take_result(draft, result)
        case other:
            raise AssertionError(f"{other.kind} is never delivered again")
