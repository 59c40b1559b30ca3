"""How messages are taken: the first one, answers, and early messages, which wait for a question or interrupt a step.

The functions that return events leave the delivery of these events to the skill to `delivery.settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import JsonValue

from refold.core.authoring.skill import Skill
from refold.core.chat import text_hash
from refold.core.codec import misfit
from refold.core.commands import AskUser, CallLlm, Sleep
from refold.core.content import Content
from refold.core.events import ChildAsked, CommandFailed, Event, UserMessage
from refold.core.fold.draft import Draft
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Receipt, ReceiptStatus, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TaskEvent, TaskState
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import fields_of, type_name
from refold.core.waits import Wait

TIMEOUT = "timeout"
"""The `type` of the failure with which a question times out."""

FITS_STEP = "refold.fits_step"
"""The patch with which a reply is refused that the step which receives it cannot take, instead of failing the task."""

FITS_CHANGED_STEP = "refold.fits_changed_step"
"""The same, where the reply fits the type that was asked for, which the step had in earlier code of the author's."""

CALL_AGAIN = "refold.call_again"
"""The patch with which an address takes another call if one that came before its question does not fit."""

CALL_IN_TIME = "refold.call_in_time"
"""The patch with which a call that was kept answers a question whose time is over, mostly since its address expired."""

CALL_BETWEEN = "refold.call_between"
"""The patch with which a call answers its question after the deadline, until the alarm closes the question."""


def take_message(draft: Draft, message: UserMessage, *, in_time: bool = False) -> Sequence[Event]:
    """Take a message as the first one or as an answer, or store it until the skill asks a question that it answers.

    With `in_time`, it answers a question whose time is over by now, too.
    """
    draft.note_message(message)
    if draft.lifecycle is TaskState.PLANNED:
        draft.move(TaskEvent.START)
        return [message]
    if not (meant := _meant(draft, draft.base.open_waits, message, in_time=in_time)):
        draft.early = (*draft.early, message)
        late = message.called_back and _meant(draft, draft.base.open_waits, message, in_time=True)
        if late and draft.base.patches.get(CALL_BETWEEN):
            # A call that was refused may have asked first, and recovery and forks leave its entry out.
            draft.patches[CALL_BETWEEN] = True
        return []
    return _answer(draft, meant[0], message)


def _answer(draft: Draft, wait: Wait, message: UserMessage) -> Sequence[Event]:
    """Close the question if it is the task's own; pass the answer on if the question is a part's."""
    if wait not in draft.waits:
        _pass_on(draft, message, wait)
        return []
    if isinstance(wait.ask, AskUser):
        draft.note_answer(wait.ask)
    outcome = message.content.model_dump(mode="json")
    draft.receipts[wait.gate] = Receipt.trusted(invocation_id=wait.gate, status=ReceiptStatus.OK, outcome=outcome)
    return closed(draft, wait, message.model_copy(update={"slot": wait.slot, "gate": wait.gate}))


def closed(draft: Draft, wait: Wait, outcome: UserMessage | DecisionMade | CommandFailed) -> Sequence[Event]:
    """Close one of the task's own questions or gates; the task runs again when the last one closes.

    Returns:
        The events to deliver: if this was the last open question, the outcomes of all questions closed while the task
        was paused, oldest first; otherwise nothing, except that the outcome of a raced question is returned at once:
        it ends the race (`delivery.settle`).
    """
    draft.withdraw((wait.gate,))
    if draft.waits and wait.ask.raced and (draft.races_end_early or not draft.redoing):
        return [outcome]
    if draft.waits:
        draft.hold(outcome)
        return []
    draft.move(TaskEvent.APPROVAL_GRANTED)
    earlier = [event for event in draft.held if _of_question(draft, event)]
    draft.held = tuple(event for event in draft.held if not _of_question(draft, event))
    return [*earlier, outcome]


def _of_question(draft: Draft, event: Event) -> bool:
    late = isinstance(event, CommandFailed) and event.invocation_id not in draft.pending
    return late or isinstance(event, UserMessage | DecisionMade)


def timed_out(draft: Draft, wait: Wait, seconds: float | None) -> Sequence[Event]:
    """Close a question or gate that timed out, with a failure that the skill can catch."""
    why = "nobody has called its address" if seconds is None else f"nobody answered within {seconds:g} s"
    failure = Failure(kind=FailureKind.PERMANENT, type=TIMEOUT, message=why)
    failed = CommandFailed(id=wait.slot, invocation_id=wait.gate, failure=failure)
    draft.keep_receipt(failed)
    return closed(draft, wait, failed)


def _pass_on(draft: Draft, message: UserMessage, answered: Wait) -> None:
    """Store the answer for the part that asked, until the part reports the question as closed (`part_asked`)."""
    for id, pending in draft.pending.items():
        if answered in pending.asks:
            asks = tuple(wait for wait in pending.asks if wait.gate != answered.gate)
            # With the gate as delivery id the part takes the answer once, however often it is sent.
            answer = UserMessage(content=message.content, gate=answered.gate, delivery_id=answered.gate)
            draft.change_pending(id, asks=asks, answers=(*pending.answers, answer))
            return


def part_asked(draft: Draft, asked: ChildAsked) -> None:
    """Record what a part waits for, without questions whose answer is stored here and not taken by the part yet.

    A question whose answer the part refused is open again.
    """
    if asked.refused:
        draft.notes += [f"the part refuses an answer: {why}" for why in asked.refused.values()]
        draft.changes["seen"] = {id: seq for id, seq in draft.base.seen.items() if id not in asked.refused}
    part, gates = asked.invocation_id, {wait.gate for wait in asked.waits} - asked.refused.keys()
    answers = tuple(answer for answer in draft.pending[part].answers if answer.gate in gates)
    answered = {answer.gate for answer in answers}
    asks = tuple(wait for wait in asked.waits if wait.gate not in answered)
    draft.change_pending(part, asks=asks, answers=answers, unresolved=asked.unresolved)


def refused_answers(entry: Entry, task: Snapshot) -> dict[str, str]:
    """Why a part, after this entry, has to ask again for answers that its parent passed on, by question."""
    match entry.event:
        case ChildAsked(refused=refused) if not entry.refused:
            return refused
        case UserMessage(gate=gate, delivery_id=id) if entry.refused and gate == id:
            waits = (wait for wait in task.open_waits if wait.gate == gate and not wait.late(task.at))
            return {wait.gate: entry.refused for wait in waits}
        case _:
            return {}


def take_early(draft: Draft) -> Sequence[Event] | None:
    """Let an early message answer a question or interrupt a step. Returns the events to deliver; None if none does."""
    answer = _answer_early(draft)
    return _interrupt(draft) if answer is None else answer


def _answer_early(draft: Draft) -> Sequence[Event] | None:
    """Answer an open question with the oldest early message that may be meant for it, and fits.

    Messages that fit none of the questions that they may be meant for are dropped, with a note in the journal. The
    address of a callback takes another call then.

    Returns:
        The events to deliver to the skill; None if no early message answers an open question.
    """
    own = draft.waits if draft.lifecycle is TaskState.PAUSED else ()
    asked = [*own, *(wait for pending in draft.pending.values() for wait in pending.asks)]
    for message in draft.early:
        meant = _meant(draft, asked, message)
        # A call was taken before its address expired, and its caller was told so; see `CALL_BETWEEN`, too.
        late = _meant(draft, asked, message, in_time=True) if message.called_back and not meant else []
        if late and draft.patched(CALL_IN_TIME):
            meant = late
        if not meant:
            continue
        draft.early = tuple(one for one in draft.early if one is not message)
        problems = [unfit_reply(draft.skill, draft.state, wait, message.content, draft.patched) for wait in meant]
        if "" in problems:
            return _answer(draft, meant[problems.index("")], message)
        draft.notes.append(f"a message that had come before is left out: {problems[0]}")
        if message.called_back and draft.patched(CALL_AGAIN):
            draft.changes["seen"] = {id: seq for id, seq in draft.seen.items() if id != message.delivery_id}
    return None


def _interrupt(draft: Draft) -> Sequence[Event] | None:
    """Interrupt the step at work by the oldest early message that may do so, and withdraw what the step waits for.

    Only what has not begun and what has no effect is withdrawn; while anything else is under way, the message waits.

    Returns:
        The message, to be delivered to the skill; None if the step is not interrupted.
    """
    if draft.lifecycle is not TaskState.RUNNING or draft.redoing or not draft.skill.interruptible(draft.state):
        return None
    new = {one.invocation_id for one in draft.issued}
    asked = {id: one.command for id, one in draft.pending.items() if not one.background}
    if any(id not in new and not isinstance(command, Sleep | CallLlm) for id, command in asked.items()):
        return None
    if (message := draft.interruption()) is None:
        return None
    draft.withdraw(tuple(asked))
    unwanted = ", ".join(command.id for command in asked.values())
    draft.notes.append(f"step {draft.skill.where(draft.state)!r} is left; not wanted any more: {unwanted}")
    return [message]


# --- which question a message answers, and whether it fits


def _meant(draft: Draft, waits: Sequence[Wait], message: UserMessage, *, in_time: bool = False) -> list[Wait]:
    """The questions that the message may be meant for, without those that have timed out, unless it came `in_time`."""
    asked = (one for one in waits if isinstance(one.ask, AskUser) and (in_time or not one.late(draft.at)))
    return [one for one in asked if answers(message, one)]


def answers(message: UserMessage, wait: Wait) -> bool:
    """Whether a message may be meant for this question: the message names this question, or no question at all."""
    callback = wait.ask.callback if isinstance(wait.ask, AskUser) else None
    if callback is not None or message.called_back:
        return callback is not None and text_hash(message.slot or "") == callback.digest
    return message.gate in (None, wait.gate) and message.slot in (None, wait.slot, wait.gate)


def unfit_reply(skill: Skill, state: JsonValue, wait: Wait, content: Content, patched: Callable[[str], bool]) -> str:
    """Why a reply does not fit its question, or the step that receives it; empty if it does."""
    ask = wait.ask
    if not isinstance(ask, AskUser):
        return ""
    if ask.expect is None or not (found := misfit(ask.expect, reply_value(content))):
        why = skill.unfit_reply(state, wait.gate, content)
        return why if why and patched(FITS_STEP if ask.expect is None else FITS_CHANGED_STEP) else ""
    fields = () if content.has_data else fields_of(ask.expect)
    way_out = f"; send data with the fields {', '.join(fields)}" if fields else ""
    return f"the reply to {ask.slot!r} must fit {type_name(ask.expect)}: {found}{way_out}"


def reply_value(content: Content) -> JsonValue:
    """The value of a reply that is checked and decoded: its data, or its text if it has no data."""
    return content.data if content.has_data else content.text
