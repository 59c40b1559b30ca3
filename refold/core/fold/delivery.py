"""How events are delivered to the skill: acts on failures, calls it, applies its transition, fails a stalled task.

`settle` ends the handling of every event of an open task. It looks failures up in the table of `failures`, and calls
the skill with one event after the other while the task is running.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from threading import current_thread, main_thread
from traceback import walk_tb

from refold.core.authoring.context import Moment
from refold.core.authoring.tool import skill_at_work
from refold.core.authoring.transition import UNCHANGED, Transition
from refold.core.chat import EMPTY, UserSaid
from refold.core.commands import AskUser, CallChat, CallLlm, Command, Sleep
from refold.core.content import Message
from refold.core.errors import CommandError, SkillError, brief, describe
from refold.core.events import CommandFailed, Event, TimerFired, UserMessage
from refold.core.fold import ending, failures
from refold.core.fold.draft import Draft
from refold.core.fold.failures import Action, Role, Stage, cell_of
from refold.core.fold.redo import adopt_new_outcomes
from refold.core.fold.snapshot import ANSWERED, STEP_PATCHES, Pending
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TERMINAL, Ending, TaskEvent, TaskState

MOST_OPEN = 2_000
"""How many commands a task has open at most: whatever comes back takes a look at all of them, and a worker that loads
the task takes all those looks within one workflow task, for which Temporal gives it ten seconds."""

OVERTAKES = "refold.overtakes"
"""The patch with which a timer wins its race although the task retries, or is blocked on, the calls that lose."""

LOST_TOO = "refold.lost_too"
"""The patch with which what lost a race is known although the step that learns who won raises."""

ASKS_ONCE = "refold.asks_once"
"""The patch with which a task fails that asks once more with the address of a callback which no call can answer."""


def settle(draft: Draft, events: Iterable[Event] = ()) -> None:
    """Deliver these events and then the held ones, as far as the lifecycle allows; then fail the task if it stalled.

    Args:
        draft: An open task.
        events: The new events, oldest first.
    """
    _decide_redone(draft)
    fresh = tuple(_deliverable(draft, events))
    if draft.lifecycle in TERMINAL:
        return
    adopt_new_outcomes(draft)
    _overtake(draft, fresh)
    if draft.lifecycle is not TaskState.RUNNING or draft.redoing:
        draft.hold(*fresh)
        return
    held_before = len(draft.held)
    draft.held = (*fresh, *draft.held)
    while draft.held and draft.lifecycle is TaskState.RUNNING:
        event, draft.held = draft.held[0], draft.held[1:]
        if isinstance(event, CommandFailed):
            act_on_failure(draft, event)
        else:
            _call(draft, event)
    if draft.lifecycle in TERMINAL:
        return
    draft.was_held = len(draft.held) > held_before
    if draft.lifecycle is TaskState.RUNNING and all(one.background for one in draft.pending.values()):
        ending.end(draft, Ending.FAILED, _stalled(draft))


def _stalled(draft: Draft) -> str:
    """Why a task ends that would wait for ever. A state that says more than its kind, such as a reason, is shown."""
    where, state = draft.skill.where(draft.state), draft.skill.own_state(draft.state)
    reason = f"stalled: {where!r} answered {draft.event.kind} without asking for anything, waiting or ending"
    says_more = isinstance(state, dict) and state.keys() - {"kind"}
    return f"{reason}; its state is {brief(state)}" if says_more else reason


def _decide_redone(draft: Draft) -> None:
    """Handle held failures of repeated effects first, since the skill is not called before those are done."""
    for event in draft.held:
        if draft.lifecycle is not TaskState.RUNNING:
            return
        if isinstance(event, CommandFailed) and cell_of(draft, event).role is Role.REDO:
            draft.held = tuple(one for one in draft.held if one is not event)
            act_on_failure(draft, event)


def _deliverable(draft: Draft, events: Iterable[Event]) -> Iterable[Event]:
    """Handle the failures that are not for the skill now, and yield the events to deliver later.

    While the task is paused, timers are delivered here, and so are answers in a race (`questions.closed`).
    """
    for event in events:
        if isinstance(event, CommandFailed) and cell_of(draft, event).stage is not Stage.RUNNING:
            yield from act_on_failure(draft, event)
        elif isinstance(event, TimerFired | UserMessage | DecisionMade) and draft.lifecycle is TaskState.PAUSED:
            _call(draft, event)
        else:
            yield event


def act_on_failure(draft: Draft, failed: CommandFailed) -> Sequence[Event]:
    """Take the action that the table of failures gives for a failure. Returns the events to deliver to the skill."""
    cell = cell_of(draft, failed)
    draft.cells.append(cell)
    match failures.TABLE[cell]:
        case Action.RETRY | Action.RETRY_UNDO:
            failures.retry(draft, failed)
        case Action.HOLD:
            failures.hold(draft, failed)
        case Action.BLOCK:
            failures.block(draft, failed)
        case Action.PROBE:
            failures.await_probe(draft, failed)
        case Action.RELEASE:
            draft.change_pending(failed.invocation_id, blocked=False, due_at=None)
            failures.release(draft)
            return act_on_failure(draft, failed) if cell_of(draft, failed).stage is not Stage.RUNNING else (failed,)
        case Action.DELIVER:
            failures.drop(draft, failed)
            draft.keep_receipt(failed)
            _call(draft, failed)
        case Action.ACCEPT:
            for result in failures.accept(draft, failed):
                _call(draft, result)
        case Action.REISSUE:
            parked = draft.parks or draft.pending[failed.invocation_id].parked
            draft.change_pending(failed.invocation_id, started=False, parked=parked)
            if draft.parks and failed.invocation_id in draft.skill.awaiting(draft.state):
                draft.parked = failed.invocation_id
                _call(draft, failed)
                draft.parked = ""
        case Action.END:
            failures.drop(draft, failed)
            ending.end_by_failure(draft, CommandError(failed.id, failed.invocation_id, failed.failure))
        case Action.NOTE:
            ending.failed_late(draft, failed)
        case Action.GIVE_UP:
            ending.give_up_undo(draft, failed)
        case Action.DROP:
            del draft.pending[failed.invocation_id]
            draft.notes.append(f"not reminded: {failed.failure.message}")
    return ()


# --- calling the skill


def _call(draft: Draft, event: Event) -> None:
    """Call the skill with one event, and apply the transition it returns. An exception in its code fails the task."""
    at_work = skill_at_work.set(draft.base.skill)
    try:
        if draft.races_end_early:
            _end_race(draft, event)
            return
        transition = draft.skill.on(draft.state, event, _moment(draft), draft.live)
        if isinstance(event, CommandFailed) and transition.ignored and not draft.parked:
            raise CommandError(event.id, event.invocation_id, event.failure)
        _apply(draft, transition)
    except CommandError as error:
        _leave_pause(draft)
        ending.end_by_failure(draft, error)
    except SkillError as error:
        _leave_pause(draft)
        ending.end(draft, Ending.FAILED, str(error))
    except BaseException as error:
        if not _of_author(error):
            raise
        _leave_pause(draft)
        ending.end(draft, Ending.FAILED, f"bug: {describe(error)}")
        place, line = _places(error)
        draft.notes.append(place)
        if draft.live is not None:
            draft.live.bug = line
    finally:
        skill_at_work.reset(at_work)


def _end_race(draft: Draft, event: Event) -> None:
    """Withdraw what lost a race to this outcome, and hold the outcome until compensated effects are performed again.

    Nothing else that the skill answers is applied: it follows from results that compensation made invalid. The skill is
    called again with the new ones.
    """
    lost = _lost_to(draft, event)
    draft.withdraw(lost)
    assert draft.redo is not None
    draft.redo = draft.redo.changed({"lost": (*(draft.redo.lost or ()), *lost)})
    draft.hold(event)
    if not draft.waits:
        _leave_pause(draft)


def _overtake(draft: Draft, fresh: Sequence[Event]) -> None:
    """Let the task run again if all that it retries or is blocked on are model calls that lost a race to a timer.

    The timer's end is one of the `fresh` events, or held since an earlier one. Held ends are looked at only when the
    task retries or is blocked on other commands than before, because the step is run once more to learn what lost.
    """
    if draft.lifecycle not in (TaskState.RETRYING, TaskState.BLOCKED) or draft.redoing:
        return
    stuck = _stuck(draft.pending)
    if not stuck or not all(isinstance(command, CallLlm) for command in stuck.values()):
        return
    changed = stuck.keys() != _stuck(draft.base.pending).keys()
    ends = [one for one in (*fresh, *(draft.held if changed else ())) if isinstance(one, TimerFired)]
    # One timer is enough: a step, and only steps have races, goes on with all outcomes that have come.
    if not ends or not stuck.keys() <= set(_lost_to(draft, ends[0])) or not draft.patched(OVERTAKES):
        return
    draft.withdraw(tuple(stuck))
    retrying = draft.lifecycle is TaskState.RETRYING
    draft.move(TaskEvent.RETRY if retrying else TaskEvent.DEPENDENCY_RESOLVED)


def _stuck(pending: Mapping[str, Pending]) -> dict[str, Command]:
    """The commands that a task retries or is blocked on, by invocation id."""
    return {
        id: one.command
        for id, one in pending.items()
        if one.blocked or (one.due_at and not isinstance(one.command, Sleep))
    }


def _lost_to(draft: Draft, event: Event) -> tuple[str, ...]:
    """The ids of what loses its race to this outcome, which the skill is called to learn; nothing else changes.

    Among them is what won: nobody awaits its outcome any more, either.
    """
    trial = copy(draft)
    trial.live, trial.patches, trial.notes, trial.entered = None, {**draft.patches}, [], []
    trial.ask_patched, trial.recorded = None, None  # the same answers now as when the event was first taken

    def patched(patch: str, again: bool) -> bool:
        # The draft itself answers what decides which calls the step withdraws: a trial that was the first to ask, and
        # got no answer, would take the path of an earlier release.
        return (draft if patch.startswith(STEP_PATCHES) else trial).patched(patch, again)

    moment = replace(_moment(trial), patched=patched)
    returned: tuple[str, ...] = ()
    at_work = skill_at_work.set(draft.base.skill)
    try:
        returned = draft.skill.on(draft.state, event, moment, None).withdraws
    except BaseException as error:
        if not _of_author(error):
            raise  # an author's error is raised again when the outcome is delivered
    finally:
        skill_at_work.reset(at_work)
    lost = tuple(moment.withdrawn)
    return lost if lost == returned or draft.patched(LOST_TOO) else returned


def _moment(draft: Draft) -> Moment:
    return Moment(
        task_id=draft.base.task_id,
        known_as=draft.base.known_as,
        seq=draft.seq,
        at=draft.at,
        issued=len(draft.issued),
        receipts=draft.receipts,
        messages=draft.base.messages,
        message=draft.message,
        threads=draft.threads,
        budget=draft.base.budget,
        patched=draft.patched,
        enters=draft.entered.append,
        interruption=draft.interruption,
        parked=draft.parked,
        check=partial(_check_early, draft),
    )


def _leave_pause(draft: Draft) -> None:
    """Make a paused task run: only a running task can end or send commands, and timers reach a paused one."""
    if draft.lifecycle is TaskState.PAUSED:
        draft.move(TaskEvent.APPROVAL_GRANTED)


# --- applying the transition that the skill returned


def _apply(draft: Draft, transition: Transition) -> None:
    draft.withdraw(transition.withdraws)
    _check(draft, transition)
    if transition.commands or transition.uncaught is not None or transition.ending is not None:
        _leave_pause(draft)
    draft.audit += transition.audit
    if transition.forgets:
        draft.receipts = {}
    if transition.state is not UNCHANGED:
        draft.state = transition.state
    if transition.progress is not None:
        draft.progress = transition.progress
    draft.said += [Message.trusted(role="agent", content=content, seq=draft.seq) for content in transition.messages]
    draft.artifacts += transition.artifacts
    for command in transition.commands:
        draft.issue(command)
    if transition.uncaught is not None:
        raise transition.uncaught
    if transition.ending is not None:
        ending.end(draft, transition.ending, transition.reason)
    elif draft.waits and draft.lifecycle is TaskState.RUNNING:
        draft.move(TaskEvent.PAUSE_FOR_APPROVAL)
    elif not draft.waits:
        _leave_pause(draft)


def _check_early(draft: Draft, transition: Transition) -> None:
    """Raise what `_apply` would raise for this transition. The draft stays as it is."""
    later = copy(draft)
    later.pending = {**draft.pending}
    later.withdraw(transition.withdraws)
    _check(later, transition)


def _check(draft: Draft, transition: Transition) -> None:
    if transition.ending is Ending.REJECTED and draft.base.lifecycle is not TaskState.PLANNED:
        raise SkillError("a skill rejects a task in answer to its first message only; use `fail` later on")
    if transition.ending is not None and transition.commands:
        raise SkillError(
            f"the task ends, and asks for {transition.commands[0].id!r} all the same: nobody would wait for it; "
            "end when it has come back"
        )
    if (many := len(draft.pending) + len(transition.commands)) > MOST_OPEN:
        raise SkillError(
            f"{many:,} commands would be open at once, of {MOST_OPEN:,} at most; give `ctx.parallel` a `limit=`, or "
            "wait for some before asking for more"
        )
    if not transition.commands:
        return
    taken = {one.command.id for one in draft.pending.values() if not one.parked} | {wait.slot for wait in draft.waits}
    for command in transition.commands:
        if command.id in taken:
            raise SkillError(
                f"two commands with the id {command.id!r} are in flight at once; give each its own id, "
                "or wait for the first one"
            )
        taken.add(command.id)
    _check_threads(draft, transition.commands)
    _check_addresses(draft, transition.commands)


def _check_threads(draft: Draft, commands: Sequence[Command]) -> None:
    chats = [command for command in commands if isinstance(command, CallChat)]
    going = {
        pending.command.thread: pending.command.id
        for pending in (draft.pending.values() if chats else ())
        if isinstance(pending.command, CallChat)
    }
    for chat in chats:
        if chat.thread in going:
            raise SkillError(
                f"chat {chat.id!r} goes on with thread {chat.thread!r} while {going[chat.thread]!r} waits for a "
                "reply in it; wait for that one, or give each its own `thread=`"
            )
        going[chat.thread] = chat.id
        said = (*draft.threads.get(chat.thread, EMPTY).said, *chat.say)
        if not said:
            raise SkillError(f"chat {chat.id!r} begins thread {chat.thread!r} and says nothing in it: give `say=`")
        if chat.since and not (chat.since < len(said) and isinstance(said[chat.since], UserSaid)):
            raise SkillError(
                f"chat {chat.id!r} shows thread {chat.thread!r} since turn {chat.since}, where the user says "
                f"nothing; a model can begin to read there only ({len(said)} turns)"
            )


def _check_addresses(draft: Draft, commands: Sequence[Command]) -> None:
    if not (asks := _called_back(commands)):
        return
    asked = {digest: slot for slot, digest in _called_back([wait.ask for wait in draft.waits])}
    for slot, digest in asks:
        other, called = asked.setdefault(digest, slot), ANSWERED + digest in draft.seen
        if (called or other != slot) and draft.patched(ASKS_ONCE):
            taken = "was answered before" if called else f"{other!r} waits for, too"
            raise SkillError(
                f"question {slot!r} has the address of a callback that {taken}; an address answers one question: "
                "make one for each, with `ctx.callback` or `Cmd.callback`"
            )


def _called_back(commands: Iterable[Command]) -> list[tuple[str, str]]:
    """The questions that calls to an address answer: their slots, and the digests of their addresses."""
    asks = [one for one in commands if isinstance(one, AskUser)]
    return [(ask.slot, ask.callback.digest) for ask in asks if ask.callback is not None]


# --- exceptions in the skill's code

_LIBRARY = re.compile(f"site-packages|^{re.escape(sysconfig.get_path('stdlib'))}|^<frozen")


def _of_author(error: BaseException) -> bool:
    """Whether the author's code raised this error; otherwise the worker raised it to stop this call.

    A coroutine library's `CancelledError` is not an `Exception`; the core imports no such library and compares names.
    A signal raises `KeyboardInterrupt` in the main thread alone: in a worker's thread, `raise` did.
    """
    authors = isinstance(error, Exception | SystemExit | GeneratorExit | BaseExceptionGroup)
    if isinstance(error, KeyboardInterrupt):
        return current_thread() is not main_thread()
    return authors or type(error) is BaseException or type(error).__name__ == "CancelledError"


def _places(error: BaseException) -> tuple[str, str]:
    """The function of the author's that raised, the innermost one outside of libraries, without its line and with it.

    The journal has the first: a line moves with each line above it, and code that says the same would seem to differ.
    """
    walked = [(str(frame.f_globals.get("__name__")), frame.f_code, at) for frame, at in walk_tb(error.__traceback__)]
    frames = [(module, code, at) for module, code, at in walked if not module.startswith("refold.core.")]
    if not frames and isinstance(error.__cause__, StopIteration):  # Python raised this one in its place
        return _places(error.__cause__)
    own = [(module, code, at) for module, code, at in frames if not _LIBRARY.search(code.co_filename)]
    module, code, line = (own or frames or walked)[-1]
    return f"at {module} in {code.co_name}", f"{code.co_filename}:{line}"
