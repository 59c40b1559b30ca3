"""The first place where today's code and a recorded history part, in words of the skill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic_core import to_json

from refold.core.authoring.skill import Skill
from refold.core.errors import RefoldError
from refold.core.fold.apply import fold
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.differences import NOTHING, FieldDifference, both, first_difference

KINDS = {
    "llm": "model call",
    "chat": "model call",
    "tool": "tool",
    "skill": "part",
    "activity": "activity",
    "workflow": "child workflow",
    "sleep": "timer",
    "ask": "question",
    "approval": "gate",
    "notify": "notification",
}
"""What people call a command of each kind."""

FIRST = ("messages", "artifacts", "progress", "refused", "held", "moves", "status", "backoffs", "closed", "patches")
"""The fields of an entry in the order in which they are compared, after its end and its commands; then the others."""

_LINE = re.compile(r":\d+(?= in )")


class Divergence(BaseModel):
    """Where a history and today's code part.

    Attributes:
        entry: The number of the journal entry; 0 for what stands before the first.
        event: What happened to the task there: the event's kind, and the id of the command that it is about.
        step: The step or state that the task was in; empty where it is not known.
        command: The command, question or gate that differs, by kind and name; empty where it is none.
        field: The field that differs; empty where something else came in its place.
        recorded: What was recorded, as JSON or in words.
        now: What the code says now, likewise.
    """

    model_config = ConfigDict(frozen=True)

    entry: int
    event: str = ""
    step: str = ""
    command: str = ""
    field: str = ""
    recorded: str
    now: str

    @property
    def where(self) -> str:
        """The entry, the step and what differs there, for people."""
        about = " ".join(filter(None, (self.event and f"({self.event})", self.step and f"in {self.step!r}")))
        what = ", ".join(filter(None, (self.command, self.field)))
        return " ".join(filter(None, (f"entry {self.entry}", about))) + (f": {what}" if what else "")

    def __str__(self) -> str:
        return f"{self.where}: recorded {self.recorded}, now {self.now}"


def of_entries(recorded: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> Divergence | None:
    """Where two journals part, given as JSON data; None if nowhere."""
    for was, is_now in zip_longest(recorded, now):
        if to_json(was) == to_json(is_now):  # equal values of Python may differ as JSON: 1 and 1.0, 1 and True
            continue
        if was is None or is_now is None:
            came = "no such entry", f"an entry for {event_of(was or is_now)}"
            recorded_as, now_as = came if was is None else reversed(came)
            return Divergence(entry=(was or is_now)["seq"], recorded=recorded_as, now=now_as)
        # Written by another release, perhaps with fields that this one leaves out.
        found = _of_entry(as_today(was), is_now)
        if found is not None:
            return found
    return None


def as_today(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as today's release of refold writes it."""
    return Entry.model_validate_json(to_json(entry)).model_dump(mode="json")


def _of_entry(was: dict[str, Any], now: dict[str, Any]) -> Divergence | None:
    told = {"entry": was["seq"], "event": event_of(was)}
    if was.get("reason") != now.get("reason"):
        return Divergence(**told, recorded=_end(was), now=_end(now))
    asked = zip_longest(was.get("commands", []), now.get("commands", []))
    for one, other in asked:
        if one is None or other is None or _name(one) != _name(other):
            return Divergence(**told, recorded=named(one), now=named(other))
        if (found := _difference(one, other)) is not None:
            return _said(told, found, command=named(one))
    for name in dict.fromkeys((*FIRST, *was, *now)):
        one, other = was.get(name, NOTHING), now.get(name, NOTHING)
        if name == "note" and _LINE.sub("", str(one)) == _LINE.sub("", str(other)):
            continue  # earlier releases wrote a bug's line into the note, which moves with any line above it
        found = _difference(one, other)
        if found is not None:
            return _said(told, found.below(name))
    return None


def _difference(was: Any, now: Any) -> FieldDifference | None:
    """The first field that differs; all of the value where its fields only stand in another order."""
    found = first_difference(was, now)
    if found is None and was is not NOTHING and to_json(was) != to_json(now):
        return FieldDifference("", was, now)
    return found


def _said(told: dict[str, Any], found: FieldDifference, command: str = "") -> Divergence:
    field = found.path.removeprefix("command.")
    was, is_now = both(found.was, found.now)
    return Divergence(**told, command=command, field=field, recorded=was, now=is_now)


def _end(entry: dict[str, Any]) -> str:
    if reason := entry.get("reason"):
        return f"that the task fails: {reason}"
    done = any(move["to_state"] == "done" for move in entry.get("moves", []))
    return "that the task completes" if done else "that the task goes on"


def _name(issued: dict[str, Any]) -> tuple[str, str, str]:
    command = issued["command"]
    return command["kind"], command["id"], command.get("name") or command.get("skill") or ""


def named(issued: dict[str, Any] | None) -> str:
    """A command of an entry, given as JSON data, for people."""
    if issued is None:
        return "nothing"
    kind, id, subject = _name(issued)
    return f"{KINDS[kind]} {subject or id!r}" + (f" as {id!r}" if subject and subject != id else "")


def event_of(entry: dict[str, Any]) -> str:
    """An entry's event: its kind, and the command's id."""
    event = entry["event"]
    about = event.get("id") or event.get("slot") or event.get("gate") or event.get("invocation_id")
    return f"{event['kind']} {about!r}" if about else str(event["kind"])


def step_before(skill: Skill, base: JsonValue, entries: Sequence[dict[str, Any]], seq: int) -> str:
    """The step or state of a task before an entry; empty where the journal cannot be folded so far."""
    if base is None:
        return ""
    try:
        past = [Entry.model_validate_json(to_json(entry)) for entry in entries if entry["seq"] < seq]
        return skill.where(fold(skill, Snapshot.model_validate_json(to_json(base)), past).state)
    except (RefoldError, ValueError):
        return ""
