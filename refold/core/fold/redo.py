"""How a recovered task continues with the new outcomes of compensated effects, which it performs again.

Commands that the skill asked for after such an effect may depend on its first outcome, which compensation voided: a
mail that names charge `c-1`. So when all these effects are performed again, the failed task's past is folded once more
with the new outcomes, and commands that have not been sent yet are replaced by those that the skill asks for now.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.core.commands import AskApproval, Command
from refold.core.events import EVENT, ChatResult, Event, Recovered, Result, ToolResult
from refold.core.fold.draft import Draft, answered
from refold.core.fold.snapshot import Redo, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lineage.ids import place, renamed

_FIRST = "the skill goes on with the first outcome of what was performed again"


def note_redone(draft: Draft, result: Result) -> None:
    """Record the new outcome of a repeated effect, and give the next ones the arguments that follow from it."""
    if draft.redo is None or not isinstance(result, ToolResult):
        return
    outcomes = {**draft.redo.outcomes, place(result.invocation_id): result.value}
    draft.redo = draft.redo.model_copy(update={"outcomes": outcomes})
    if not (draft.redo.in_turn and draft.redoing) or (now := _folded(draft, draft.redo)) is None:
        return
    asked = _asked(now) | {place(effect.invocation_id): effect.command for effect in now.done}
    for id, one in draft.pending.items():
        command = asked.get(place(id))
        if one.background and not one.started and command is not None and _what(command) == _what(one.command):
            draft.change_pending(id, command=command)


def _folded(draft: Draft, redo: Redo) -> Snapshot | None:
    """The failed task with the new outcomes so far; None if its past is the same with them."""
    assert draft.refold is not None
    past = tuple(one.model_copy(update={"event": _renewed(redo, one.event)}) for one in redo.past)
    if past == redo.past:
        return None
    skipped = frozenset(redo.skipped)
    return draft.refold(draft.skill, redo.base, past, skipped=skipped, parks=redo.parks, patched=draft.patched)


def adopt_new_outcomes(draft: Draft) -> None:
    """Once all effects are performed again, replace the skill's state by the one it has with the new outcomes.

    If the skill would ask for other commands or questions with them, if a decision is for what a gate showed before, or
    an effect was first performed before the part of the journal that recovery folds, the first outcomes stay, and the
    journal says so.
    """
    if draft.redo is None or draft.redoing:
        return
    redo, draft.redo = draft.redo, None
    if redo.outcomes.keys() - _performed((*(one.event for one in redo.past), *draft.held)):
        draft.notes.append(f"{_FIRST}: it is too far back in the journal")
    if (now := _folded(draft, redo)) is None:
        _renew_held(draft, redo)
        return
    if why := _divergence(draft, redo, now):
        draft.notes.append(f"{_FIRST}: {why}")
        return
    by_place = {place(id): id for id in draft.pending}
    waited_for = {place(id): one for id, one in now.pending.items()}
    ids = {id: by_place[place(id)] for id in now.pending if place(id) in by_place}
    for id, one in now.pending.items():
        if id in ids and not draft.pending[ids[id]].started:
            draft.change_pending(ids[id], command=one.command)
    asks = {wait.gate: wait.ask for wait in now.waits}
    draft.waits = tuple(wait.model_copy(update={"ask": asks[wait.gate]}) for wait in draft.waits)
    draft.state, draft.threads = renamed(now.state, ids), now.threads
    for event in draft.held:  # a model's reply that the past did not have yet
        if isinstance(event, ChatResult) and (chat := waited_for.get(place(event.invocation_id))):
            draft.keep_reply(chat, event)
    draft.receipts = {**draft.receipts, **now.receipts}
    _renew_held(draft, redo)


def _renew_held(draft: Draft, redo: Redo) -> None:
    """Put the new outcomes into the results that the skill has not had yet."""
    draft.held = tuple(_renewed(redo, event) for event in draft.held)
    for event in draft.held:
        if isinstance(event, ToolResult):
            draft.keep_receipt(event)


def _performed(events: Sequence[Event]) -> set[str]:
    """The places of the effects whose results are among these events."""
    again = (EVENT.validate_python(one.again) for one in events if isinstance(one, Recovered) and one.again is not None)
    return {place(one.invocation_id) for one in (*events, *again) if isinstance(one, ToolResult)}


def _renewed(redo: Redo, event: Event) -> Event:
    """The result of a repeated effect with its new outcome; any other event unchanged."""
    if isinstance(event, ToolResult) and (effect := place(event.invocation_id)) in redo.outcomes:
        return event.model_copy(update={"value": redo.outcomes[effect]})
    if isinstance(event, Recovered) and event.again is not None:
        again = _renewed(redo, EVENT.validate_python(event.again))
        return event.model_copy(update={"again": again.model_dump(mode="json")})
    return event


def _divergence(draft: Draft, redo: Redo, now: Snapshot) -> str:
    """Why the past, folded with the new outcomes, does not lead to the same open commands and questions; else empty."""
    if now.ended:
        return f"with the new one the task would have ended: {now.reason}"
    if now.refused > redo.base.refused:  # a grant for what a gate showed then, an answer to another question
        return "with the new one the task would have refused an event that it took"
    before, asked = _asked(draft), _asked(now)
    for at, command in before.items():
        if at not in asked or _what(asked[at]) != _what(command):
            return f"with the new one it would not have asked for {command.id!r}"
    held = {place(id): name for id, name in map(answered, draft.held) if id is not None}
    held |= {place(id): asked[place(id)].id for id in redo.lost or () if place(id) in asked}
    for at, command in asked.items():
        if at not in before and held.get(at) != command.id:
            return f"with the new one it would have asked for {command.id!r}, too"
    decisions = [one for one in draft.held if isinstance(one, DecisionMade)]
    decisions += [grant for wait in draft.waits for grant in wait.grants]
    other = [one.slot for one in decisions if (gate := asked.get(place(one.gate))) and not _decides(one, gate)]
    return f"with the new one {other[0]!r} would have shown something else than was decided on" if other else ""


def _decides(decision: DecisionMade, ask: Command) -> bool:
    """Whether a decision is for what this gate shows, with the changes that approvers made."""
    if not isinstance(ask, AskApproval):
        return False
    if isinstance(decision.shown, dict):
        ask = ask.edited({name: decision.shown[name] for name in ask.editable if name in decision.shown})
    return decision.digest in (ask.digest, ask.former)


def _asked(task: Draft | Snapshot) -> dict[str, Command]:
    """The commands and questions whose outcomes the skill waits for, by their place."""
    asked: dict[str, Command] = {place(id): one.command for id, one in task.pending.items() if not one.background}
    return asked | {place(wait.gate): wait.ask for wait in task.waits}


def _what(command: Command) -> tuple[str, str, str]:
    return command.kind, command.id, command.subject
