"""A journal as steps that can be compared, and the alignment of two: one inserted step moves no other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from refold.core.commands import Command, Notify
from refold.core.content import Content
from refold.core.events import (
    ChatResult,
    ChildAsked,
    CommandFailed,
    Event,
    Forked,
    Notified,
    Recovered,
    ReminderDue,
    UserMessage,
)
from refold.core.fold.journal import Entry
from refold.core.gates import DecisionMade
from refold.evals.recording import arguments
from refold.evals.result import Row

EXACT = 250_000
"""The most pairs of steps of which all equal ones are matched. `SequenceMatcher` takes cubic time where steps repeat,
so of longer journals only steps that each has once are matched, and the steps between them are paired by their keys."""


@dataclass(frozen=True, slots=True)
class Step:
    """One entry without its number, time and ids.

    Attributes:
        seq: The entry's number.
        key: What happened, by kind and author's name; steps that differ are paired by it.
        lines: All that is compared, addresses of callbacks too.
    """

    seq: int
    key: str
    lines: tuple[str, ...]


def steps_of(entries: Iterable[Entry], slots: dict[str, str]) -> list[Step]:
    """The steps of a journal; refused events and what only people are told are no steps.

    Args:
        entries: The journal.
        slots: The names of gates, by gate.
    """
    found = []
    for entry in entries:
        if entry.refused or isinstance(entry.event, Notified | ReminderDue | ChildAsked):
            continue
        key, line = _event(entry.event, slots)
        found.append(Step(entry.seq, key, (line, *_effects(entry))))
    return found


def _effects(entry: Entry) -> Iterator[str]:
    yield from (f"says: {_content(message)}" for message in entry.messages)
    yield from (f"hands over: {one.name}: {_content(Content(parts=one.parts))}" for one in entry.artifacts)
    asked = (one.command for one in entry.commands if not isinstance(one.command, Notify))
    yield from (f"asks: {one.kind} {one.subject} {_json(arguments(one))}" for one in asked)
    if entry.status is not None and (entry.ends or entry.reason):
        yield f"ends: {entry.status}{f': {entry.reason}' if entry.reason else ''}"


def _event(event: Event, slots: dict[str, str]) -> tuple[str, str]:
    """An event's key, and the event in a line."""
    match event:
        case UserMessage(content=content, slot=slot):
            return f"user {slot or ''}", f"user: {_content(content)}"
        case DecisionMade(gate=gate, decision=decision, approver=approver, changes=changes):
            slot = slots.get(gate, gate)
            more = f", with {_json(changes)}" if changes else ""
            return f"decision {slot}", f"{slot} {decision} by {approver}{more}"
        case ChatResult(id=id, reply=reply):
            calls = [{"name": one.name, "args": one.args} for one in reply.tool_calls]
            said = [reply.text] if reply.text else []
            said += [_json(reply.value)] if reply.value is not None else []
            said += [f"calls {_json(calls)}"] if calls else []
            return f"outcome {id}", f"{id} replied: {'; '.join(said)}"
        case CommandFailed(id=id, failure=failure):
            return f"outcome {id}", f"{id} failed ({failure.kind}, {failure.type}): {failure.message}"
        case Recovered() | Forked():
            return event.kind, event.kind
        case _:
            id = str(getattr(event, "id", ""))
            value = getattr(event, "value", None)
            return (f"outcome {id}", f"{id}: {_json(value)}") if id else (event.kind, event.kind)


def aligned(recorded: Sequence[Step], now: Sequence[Step]) -> list[Row]:
    """Two journals side by side: equal steps stand beside each other, and so do steps that differ in part.

    Equal beginnings and ends come first: among equal steps `SequenceMatcher` prefers the longest run, wherever it is.
    """
    most = min(len(recorded), len(now))
    head = next((place for place in range(most) if recorded[place].lines != now[place].lines), most)
    rest = range(1, most - head + 1)
    tail = next((place - 1 for place in rest if recorded[-place].lines != now[-place].lines), most - head)
    end, end_now = len(recorded) - tail, len(now) - tail
    return [
        *map(_row, recorded[:head], now[:head]),
        *_between(recorded[head:end], now[head:end_now]),
        *map(_row, recorded[end:], now[end_now:]),
    ]


def _between(recorded: Sequence[Step], now: Sequence[Step]) -> list[Row]:
    rows: list[Row] = []
    lines: list[object] = [one.lines for one in recorded]
    lines_now: list[object] = [one.lines for one in now]
    if len(lines) * len(lines_now) > EXACT:
        alone = _alone(lines) & _alone(lines_now)
        lines, lines_now = _only(alone, lines), _only(alone, lines_now)
    whole = SequenceMatcher(None, lines, lines_now, autojunk=False)
    for tag, a, b, c, d in whole.get_opcodes():
        if tag == "equal":
            rows += [_row(one, other) for one, other in zip(recorded[a:b], now[c:d], strict=True)]
        else:
            rows += _paired(recorded[a:b], now[c:d])
    return rows


def _alone(lines: Iterable[object]) -> set[object]:
    return {one for one, times in Counter(lines).items() if times == 1}


def _only(alone: Container[object], lines: Iterable[object]) -> list[object]:
    """The lines, with an object that equals nothing in place of each other one."""
    return [one if one in alone else object() for one in lines]


def _paired(recorded: Sequence[Step], now: Sequence[Step]) -> Iterator[Row]:
    ones, others = [one.key for one in recorded], [one.key for one in now]
    if ones == others:
        yield from map(_row, recorded, now)
        return
    keys = SequenceMatcher(None, ones, others, autojunk=False)
    for tag, a, b, c, d in keys.get_opcodes():
        if tag == "equal":
            yield from (_row(one, other) for one, other in zip(recorded[a:b], now[c:d], strict=True))
        else:
            yield from (_row(one, None) for one in recorded[a:b])
            yield from (_row(None, one) for one in now[c:d])


def _row(recorded: Step | None, now: Step | None) -> Row:
    return Row(
        recorded_seq=None if recorded is None else recorded.seq,
        now_seq=None if now is None else now.seq,
        recorded=() if recorded is None else recorded.lines,
        now=() if now is None else now.lines,
    )


def slots_of(commands: Iterable[tuple[str, Command]]) -> dict[str, str]:
    """The names of gates and questions, by invocation id."""
    return {id: command.id for id, command in commands}


def _content(content: Content) -> str:
    """Text as it is; with data or files beside it, all parts, since each is compared."""
    only_text = all(part.text is not None for part in content.parts)
    return content.text if only_text else _json(content.model_dump(mode="json")["parts"])


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
