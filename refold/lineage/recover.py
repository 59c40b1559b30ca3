"""How a failed task is recovered: a new task continues from its journal, folded again without the event that ended it.

The failed task does not change. The new task takes over its state, receipts and open commands with their ids. So no
finished effect is sent again, and a tool that received an open command before recognises it. Source: S3.27.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from refold.core.authoring.skill import Skill
from refold.core.commands import CallSkill, CallTool, CallWorkflow, Command, Notify
from refold.core.errors import InputRejected
from refold.core.events import (
    EVENT,
    RESULT_TYPES,
    CancelRequested,
    CommandFailed,
    DependencyResolved,
    Event,
    GateTimedOut,
    GraceOver,
    Recovered,
    ToolResult,
    UserMessage,
)
from refold.core.fold.apply import advance, fold, with_kept_patches
from refold.core.fold.draft import to_undo
from refold.core.fold.ending import under_way
from refold.core.fold.failures import blocked_one, given_outcome, with_outcome
from refold.core.fold.journal import Entry, receipt_of
from refold.core.fold.questions import answers
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import UNDO, PastEvent, Pending, ReceiptStatus, Redo, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TaskEvent, TaskState
from refold.core.lineage.ids import anew, own_id, place, renamed, without_open_failures
from refold.core.lineage.upgrade import upgraded

IN_TIME = "refold.in_time"
"""A callback's call that came in time, and is delivered again after its address expired, answers its question."""

RACES = "refold.races"
"""An answer ends its race at once, although compensated effects are still to be performed again."""

Refolded = Callable[[Snapshot, Sequence[Entry]], Snapshot]


def recover(
    skill: Skill,
    base: Snapshot,
    entries: Sequence[Entry],
    task_id: str,
    at: datetime,
    *,
    by: str | None = None,
    in_turn: bool = True,
    patched: Callable[[str], bool] = lambda _: True,
) -> tuple[Snapshot, Recovered]:
    """The new task's first snapshot and first event.

    Args:
        skill: The failed task's skill, in its current code.
        base: The failed task before the first of the entries.
        entries: The failed task's journal after `base`, to its end.
        task_id: The new task's id.
        at: Now; timeouts of open questions and gates begin again.
        by: Who recovers the task.
        in_turn: Perform compensated effects again one after the other; False for a task that an earlier release began.
        patched: Answers a patch of refold's own, asked only where it matters, and `ctx.patched` for the new task's
            first event: False for a task that an earlier release or older code began.

    Raises:
        InputRejected: The task is open or completed, is still compensating, or would end again at once.
        SkillError: The current code cannot read the task's state.
    """
    last = next((entry for entry in entries if entry.ends), None)
    if last is None or (last.moves and last.moves[-1].to_state is TaskState.DONE):
        how = "open" if last is None else "done"
        raise InputRejected(f"task {base.task_id!r} is {how}; only a task that failed or was canceled recovers")
    kept = [entry for entry in entries if entry.seq <= last.seq and not entry.refused]
    if base.lifecycle is TaskState.PLANNED and isinstance(kept[0].event, CancelRequested):
        raise InputRejected(f"task {base.task_id!r} was canceled before it began; start a new one")
    again: Event | None = None
    base = upgraded(skill, base)
    before_end = fold(skill, base, kept[:-1], patched=patched)
    skipped = set(fold(skill, before_end, kept[-1:], patched=patched).unraised)
    if last.cause is not None:
        skipped.add(last.cause)
    else:
        kept, again = kept[:-1], _event_again(kept[-1], entries)
        skipped = set() if again is not None else skipped
    # What went on beside a call after its failure may not have gone on without: a limit let it begin, or it asked.
    refolded = partial(fold, skill, skipped=skipped, patched=patched)
    tries = [_Refolded(skill, base, kept, again, refolded)]
    if tries[0].why_not:
        tries.append(_Refolded(skill, base, kept, again, partial(refolded, parks=True)))
    if tries[-1].why_not:  # the last one, so that a task which was recovered before this was tried is replayed alike
        tries.append(_Refolded(skill, base, kept, again, refolded, goes_on=True))
    if tries[-1].why_not:
        raise InputRejected(f"task {base.task_id!r} {tries[0].why_not}")
    snapshot, again, parks = tries[-1].snapshot, tries[-1].again, len(tries) == 2
    if open_still := _still_running(snapshot, before_end, last, entries):
        raise InputRejected(f"task {base.task_id!r} {open_still}; recover it when that is over")
    snapshot = _with_late_results(snapshot, last, entries)
    data = None if again is None else again.model_dump(mode="json")
    new = with_kept_patches(_planned(snapshot, entries, task_id, at, again), patched)
    if any(one.background for one in new.pending.values()):
        past = tuple(PastEvent(seq=one.seq, at=one.at, event=one.event, patches=one.patches) for one in kept)
        redo = new.redo or Redo(base=base, past=past, skipped=tuple(sorted(skipped)), parks=parks)
        raced = len(new.waits) > 1 and any(wait.ask.raced for wait in new.waits)
        lost = () if redo.lost is None and raced and patched(RACES) else redo.lost
        new = new.changed({"redo": redo.changed({"in_turn": in_turn, "lost": lost})})
    late = isinstance(again, UserMessage) and any(wait.late(at) and answers(again, wait) for wait in new.waits)
    first = Recovered(task_id=base.task_id, again=data, in_time=late and patched(IN_TIME), by=by)
    # The new task takes the event at once, and is asked for the same patches: the trial adds no marker of its own.
    tried, _ = advance(skill, new, first, at, patched=patched)
    if tried.ended and tried.lifecycle is TaskState.FAILED:
        raise InputRejected(
            f"task {base.task_id!r} would end again at once: {tried.reason}; change the skill, then recover"
        )
    return new, first


class _Refolded:
    """A failed task, folded again without the failures that recovery skips.

    Attributes:
        snapshot: The task.
        again: The event to deliver to the new task first, unless the snapshot has it.
        why_not: Why the new task cannot go on from there; empty if it can.
    """

    def __init__(
        self,
        skill: Skill,
        base: Snapshot,
        kept: Sequence[Entry],
        again: Event | None,
        refolded: Refolded,
        *,
        goes_on: bool = False,
    ) -> None:
        self.again, self.why_not = again, ""
        self.snapshot = refolded(base, kept)
        if isinstance(again, DependencyResolved):
            self.snapshot, self.again = _resolved(self.snapshot, again)
        if self.snapshot.ended:
            ends = self.snapshot.reason or self.snapshot.status
            self.why_not = f"ends without the failure, too: {ends}; change the skill, then recover"
        elif other := _divergence(skill, self.snapshot, base, kept, self.again, refolded, goes_on=goes_on):
            self.why_not = (
                "cannot be recovered: without the failure its skill does not do what the journal records: "
                f"{other}; fork it at an earlier entry"
            )


def lacks(entries: Sequence[Entry]) -> bool:
    """Whether recovery needs entries before these, the end of a failed task's journal.

    It needs the end, the failure that ended the task, and the results of effects that were compensated.
    """
    if not any(entry.ends for entry in entries):
        return True
    cause = next((entry.cause for entry in entries if entry.ends), None)
    come = {getattr(entry.event, name, None) for entry in entries for name in ("invocation_id", "gate")}
    done = {entry.event.invocation_id for entry in entries if isinstance(entry.event, ToolResult)}
    return (cause is not None and cause not in come) or not {id.removesuffix(UNDO) for id in done} <= done


def may_lack(base: Snapshot) -> bool:
    """Whether recovery may need entries before this snapshot, with which a failed task's last entries begin.

    The skill's `await` has received a failure by then. If it was not raised, recovery sends the command again.
    """
    return any(receipt.status is ReceiptStatus.ERROR for receipt in base.receipts.values())


def sent_again(before: Snapshot, after: Snapshot, end: Entry) -> set[str]:
    """Ids of the commands that recovery may send again; the skill has handled the outcomes of all others.

    Args:
        before: The failed task before the entry that ended it.
        after: The task after that entry.
        end: The entry.
    """
    return {*before.pending, *after.unraised, *([] if end.cause is None else [end.cause])}


def _divergence(
    skill: Skill,
    snapshot: Snapshot,
    base: Snapshot,
    kept: Sequence[Entry],
    again: Event | None,
    refolded: Refolded,
    *,
    goes_on: bool,
) -> str:
    """What the failed task did that the folded one did not, or the other way round; empty if nothing.

    Its results would be lost, and its ids used for other commands.

    Args:
        skill: The task's skill.
        snapshot: The task, folded again.
        base: The failed task before the first of the entries.
        kept: The entries that were folded.
        again: The event to deliver to the new task first.
        refolded: Folds entries as `snapshot` was folded.
        goes_on: The entry that ended the task may ask for more: what was held with the failure is delivered, and the
            task sent nothing under those ids.
    """
    fresh = f"{kept[-1].seq}." if goes_on and kept and kept[-1].ends else None
    asked: dict[str, Command] = {id: one.command for id, one in base.pending.items()}
    asked |= {one.invocation_id: one.command for entry in kept for one in entry.commands}
    for id, one in snapshot.pending.items():
        was = asked.get(id)
        if was is None and fresh is not None and place(id).startswith(fresh):
            continue
        if was is None or (was.kind, was.id, was.subject) != (one.command.kind, one.command.id, one.command.subject):
            return f"it would ask for {one.command.id!r} as {id}"
    if isinstance(again, RESULT_TYPES) and again.invocation_id not in snapshot.pending:
        return f"it would not ask for {again.id!r} as {again.invocation_id}, whose result came"
    if snapshot.refused > base.refused:
        number = bisect(range(len(kept)), False, key=lambda n: refolded(base, kept[: n + 1]).refused > base.refused)
        before, entry = refolded(base, kept[:number]), kept[number]
        return f"it refuses entry {entry.seq}: {refusal(skill, before, entry.event, entry.at)}"
    return ""


def _resolved(snapshot: Snapshot, again: DependencyResolved) -> tuple[Snapshot, Event | None]:
    """Apply an operator's outcome of a blocked command: to the snapshot, or as the new task's first event."""
    blocked = blocked_one(snapshot.pending, again)
    if blocked is None:
        return snapshot, None
    if not isinstance(blocked.command, CallTool):
        return snapshot, given_outcome(blocked, again)
    given = {blocked.invocation_id: with_outcome(blocked, again.outcome)}
    return snapshot.changed({"pending": {**snapshot.pending, **given}}), None


def _still_running(snapshot: Snapshot, before_end: Snapshot, last: Entry, entries: Sequence[Entry]) -> str:
    """What the ended task still does (a running effect, a late grant, compensation); empty if nothing.

    Args:
        snapshot: The task without the failures that recovery skips: it has sent the failed commands again.
        before_end: The task before the entry that ended it, with those failures.
        last: That entry.
        entries: The journal.
    """
    after = [entry for entry in entries if entry.seq > last.seq and not entry.refused]
    over = {
        entry.event.invocation_id
        for entry in [last, *after]
        if isinstance(entry.event, ToolResult) or (isinstance(entry.event, CommandFailed) and not entry.backoffs)
    }
    over |= {event.invocation_id for event in before_end.held if isinstance(event, CommandFailed)}
    out = {id for id, one in before_end.pending.items() if under_way(one)}
    late = [id for id in snapshot.pending if id in out - over]
    if late:
        return f"still waits for {', '.join(late)}, which is under way and has to be undone"
    if not snapshot.done:
        return ""
    if isinstance(last.event, GateTimedOut) and not any(
        isinstance(entry.event, GraceOver | DecisionMade) for entry in after
    ):
        return "waits for a late grant, before its effects are undone"
    undos = {issued.invocation_id for entry in [last, *after] for issued in entry.commands} - over
    return f"is still undoing {', '.join(sorted(undos))}" if any(id.endswith(UNDO) for id in undos) else ""


def _with_late_results(snapshot: Snapshot, last: Entry, entries: Sequence[Entry]) -> Snapshot:
    """The snapshot with the results of effects that ended after the task and could not be compensated."""
    undone = _undone(entries)
    pending, receipts = dict(snapshot.pending), dict(snapshot.receipts)
    held, done = list(snapshot.held), list(snapshot.done)
    for entry in entries:
        event = entry.event
        if entry.seq <= last.seq or entry.refused or not isinstance(event, ToolResult):
            continue
        id, one = event.invocation_id, pending.get(event.invocation_id)
        if one is None or id in undone or not isinstance(one.command, CallTool) or one.command.undo is None:
            continue
        del pending[id]
        done.append(to_undo(id, one.command, one.command.undo, event.value))
        if not one.background and (receipt := receipt_of(event)) is not None:
            receipts[id] = receipt
            held.append(event)
    return snapshot.changed({"pending": pending, "receipts": receipts, "held": tuple(held), "done": tuple(done)})


def _undone(entries: Sequence[Entry]) -> set[str]:
    """Invocation ids of the effects that were compensated."""
    ids = (entry.event.invocation_id for entry in entries if isinstance(entry.event, ToolResult) and not entry.refused)
    return {id.removesuffix(UNDO) for id in ids if id.endswith(UNDO)}


def _event_again(last: Entry, entries: Sequence[Entry]) -> Event | None:
    """The event to deliver to the new task first: the event whose handling ended the task, or a late grant."""
    match last.event:
        case GateTimedOut(gate=gate):
            late = (one.event for one in entries if one.seq > last.seq and not one.refused)
            return next((event for event in late if isinstance(event, DecisionMade) and event.gate == gate), None)
        case DecisionMade() if last.moves[-1].event is TaskEvent.APPROVAL_DENIED:
            return None
        case DecisionMade() | UserMessage() | DependencyResolved(retry=False):
            return last.event
        case event if isinstance(event, RESULT_TYPES):
            return event
        case Recovered(again=again):
            return None if again is None else EVENT.validate_python(again)
        case _:
            # A cancel; a failure, whose command is sent again; or an alarm, after which a held event caused the bug:
            # the snapshot before the alarm still holds that event.
            return None


def _planned(snapshot: Snapshot, entries: Sequence[Entry], task_id: str, at: datetime, again: Event | None) -> Snapshot:
    undone = _undone(entries)
    delivered = again.invocation_id if isinstance(again, RESULT_TYPES) else None
    open_still = {id: one for id, one in snapshot.pending.items() if not isinstance(one.command, Notify)}
    # Ids of late effects that were compensated, and of parts and child workflows, since a workflow has their old id.
    ids = {
        id: own_id(task_id, id)
        for id, one in open_still.items()
        if id != delivered and (id in undone or isinstance(one.command, CallSkill | CallWorkflow))
    }
    pending = {ids.get(id, id): anew(one, ids.get(id, id)) for id, one in open_still.items()}
    for id in (ids[id] for id in undone & ids.keys()):
        # What an operator said of the effect is void, since the effect is compensated.
        pending[id] = pending[id].model_copy(update={"given": None})
    effects = {done.invocation_id: done.command for done in snapshot.done}
    if delivered is not None and isinstance(command := snapshot.pending[delivered].command, CallTool):
        effects[delivered] = command
    for id, effect in effects.items():
        if id in undone:
            anew_id = own_id(task_id, id)
            pending[anew_id] = Pending(invocation_id=anew_id, command=effect, background=True)
    return snapshot.changed(
        {
            "task_id": task_id,
            "known_as": snapshot.known_as or snapshot.task_id,
            "seq": entries[-1].seq,
            "at": at,
            "lifecycle": TaskState.PLANNED,
            "recovered_from": snapshot.task_id,
            "state": renamed(snapshot.state, ids),
            "pending": pending,
            "waits": tuple(wait.anew(task_id, at) for wait in snapshot.waits),
            "done": tuple(done for done in snapshot.done if done.invocation_id not in undone),
            "held": without_open_failures(snapshot.held, snapshot.pending),
            "undone": (),
            "unraised": (),
            "parent": None,
        }
    )
