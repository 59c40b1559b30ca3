"""Several events that a task takes together, or not at all: the decisions of a person at several gates.

Each is judged by the task as it is before the first of them. That is enough, since a decision changes nothing that
another one is judged by, with three exceptions, which are refused: two decisions at one gate, a decision after which
the task ends, and one after which the skill goes on although other gates are open. The last two may come last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from refold.core.authoring.skill import Skill
from refold.core.commands import AskApproval
from refold.core.events import Event
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import DecisionMade
from refold.core.values import REFUSAL_CHARS, shortened

MOST = 200
"""How many decisions are taken together. Each is judged beside all that is open, and the SDK gives that two seconds."""


class RefusedEvents(NamedTuple):
    """The first of the events that the task cannot take, and why it takes none."""

    event: Event
    why: str


def refused(
    skill: Skill,
    snapshot: Snapshot,
    events: Sequence[Event],
    at: datetime,
    patched: Callable[[str], bool] | None = None,
) -> RefusedEvents | None:
    """Why a task cannot take all of these events, in this order and with nothing in between; None if it can.

    Args:
        skill: The task's skill.
        snapshot: The task.
        events: At least one; several are `DecisionMade`.
        at: The time at which the task takes them.
        patched: See `refusal`.
    """
    for number, event in enumerate(events):
        why = refusal(skill, snapshot, event, at, patched)
        if len(events) > 1 and isinstance(event, DecisionMade):
            why = why or _not_with_others(snapshot, event, events[:number], at, is_last=number == len(events) - 1)
            if why:
                named = f"{_slot(snapshot, event.gate)!r} ({event.gate})".removeprefix("'' ")
                why = f"none of the {len(events)} decisions was taken, since the one at {named} cannot be: {why}"
        if why:
            return RefusedEvents(event, shortened(why, REFUSAL_CHARS))
    return None


def too_many(events: Sequence[Event]) -> RefusedEvents | None:
    """Why a task takes none of so many decisions at once; None if it may.

    `refused` does not say so: a replay asks it of events that are in history, however many.
    """
    if len(events) <= MOST:
        return None
    why = f"{len(events)} decisions came together, and none was taken; send at most {MOST} at once"
    return RefusedEvents(events[0], why)


def _not_with_others(
    snapshot: Snapshot, decision: DecisionMade, before: Sequence[Event], at: datetime, *, is_last: bool
) -> str:
    """Why a decision that the task can take alone is not taken among others; empty if it is."""
    wait = next((one for one in snapshot.waits if one.gate == decision.gate), None)
    if wait is None or not isinstance(wait.ask, AskApproval):
        return "a late grant is decided alone"
    if any(isinstance(one, DecisionMade) and one.gate == decision.gate for one in before):
        return "it is decided twice"
    if wait.timeout_at is not None and at >= wait.timeout_at:
        return "its time is over, and a late grant is decided alone"
    if is_last:
        return ""
    if not decision.approved and wait.ask.policy.on_denied == "fail":
        return "a denial there ends the task, so nothing is decided after it: deny at that gate alone, or last"
    grants = len(wait.decided(decision).grants)
    if wait.ask.raced and (not decision.approved or grants >= wait.ask.policy.needed):
        return "it races with others, so that the task goes on at once: decide there alone, or last"
    return ""


def _slot(snapshot: Snapshot, gate: str) -> str:
    return next((one.slot for one in snapshot.open_waits if one.gate == gate), "")
