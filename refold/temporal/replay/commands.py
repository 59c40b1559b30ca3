"""The first difference between a history's commands and those of today's code: order, kind, id or argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from pydantic_core import from_json
from temporalio.converter import DataConverter

from refold.core.lineage.ids import place
from refold.differences import FieldDifference, both, first_difference
from refold.temporal.data.wire import CHAT_ACTIVITY, LLM_ACTIVITY, NOTIFY_ACTIVITY, TOOL_ACTIVITIES
from refold.temporal.replay.asked import Asked
from refold.temporal.replay.divergence import Divergence, event_of, named
from refold.temporal.replay.values import data_in, difference

ROUNDED = timedelta(milliseconds=1)
"""The most by which the time of an entry and that of its workflow task differ, which have other units."""


@dataclass(frozen=True, slots=True)
class CommandDifference:
    """The first pair of commands that differ; None stands for no command.

    Attributes:
        was: What was recorded.
        now: What today's code asks for.
        differs: Where their arguments differ; None where they are different commands.
    """

    was: Asked | None
    now: Asked | None
    differs: FieldDifference | None = None


async def first_command_difference(
    recorded: Sequence[Asked], now: Sequence[Asked], converter: DataConverter, *, fits: bool
) -> CommandDifference | None:
    """The first command in which two lists of commands differ; None if they agree.

    Args:
        recorded: Those of the history.
        now: Those of today's code; may go on where the history ends.
        converter: Reads the history's values.
        fits: Temporal's own replayer has found nothing.

    Raises:
        StorageError: A stored value that differs cannot be read.
        CodecError: A value cannot be decrypted.
    """
    for was, is_now in zip_longest(recorded, now):
        if was is None or is_now is None:
            return None if fits else CommandDifference(was, is_now)
        if was.key != is_now.key:
            # Temporal compares the kinds in its own way, which is right where the two disagree.
            return None if fits and was.kind != is_now.kind else CommandDifference(was, is_now)
        if was.kind != "end" and (found := await _differs(was, is_now, converter)) is not None:
            return CommandDifference(was, is_now, found)
    return None


async def _differs(was: Asked, now: Asked, converter: DataConverter) -> FieldDifference | None:
    if was.seconds != now.seconds:
        return FieldDifference("seconds", was.seconds, now.seconds)
    recorded, given = dict(was.inputs), dict(now.inputs)
    for name in {**recorded, **given}:
        if was.kind == "attributes" and (name not in recorded or name not in given):
            continue  # no skill writes these, and one release of refold writes more of them than another
        if name not in recorded or name not in given:
            one, other = (data_in(side[name]) if name in side else None for side in (recorded, given))
            return FieldDifference(f"input {name}", one, other)
        if was.kind == "attributes":  # the server reads these, so no codec encrypts them
            found = first_difference(data_in(recorded[name]), data_in(given[name]))
        else:
            found = await difference(recorded[name], given[name], converter)
        if found is not None:
            return found.below("" if name == "1" else name if was.kind in ("attributes", "memo") else f"input {name}")
        if _is_own(was):
            break  # what follows the command is refold's: who owns the task, what an operator said
    return None


def _is_own(asked: Asked) -> bool:
    return asked.kind == "activity" and asked.name.startswith(
        (TOOL_ACTIVITIES, LLM_ACTIVITY, CHAT_ACTIVITY, NOTIFY_ACTIVITY)
    )


def in_skill_terms(found: CommandDifference, entries: Sequence[dict[str, Any]]) -> Divergence:
    """A difference in the skill's own terms: its entry, command and field.

    Args:
        found: The first difference.
        entries: The entries of today's journal, as JSON data, as far as it goes.
    """
    one = found.now or found.was
    assert one is not None
    entry = _entry_of(one, entries)
    told = {"entry": entry["seq"], "event": event_of(entry)} if entry else {"entry": 0}
    if found.differs is None:
        return Divergence(**told, recorded=_words(found.was, entries), now=_words(found.now, entries))
    differs = found.differs
    command = f"timer {_label(one)}".strip() if one.kind == "timer" else _words(one, entries)
    was, is_now = both(differs.was, differs.now)
    return Divergence(**told, command=command, field=differs.path, recorded=was, now=is_now)


def _words(asked: Asked | None, entries: Sequence[dict[str, Any]]) -> str:
    if asked is None:
        return "nothing"
    for entry in entries:
        for issued in entry.get("commands", ()):
            if issued["invocation_id"] == asked.id and _is_of(asked, issued["command"]):
                return named(issued)
    if asked.kind == "timer" and (label := _label(asked)):
        return f"{asked.words} ({label})"
    if asked.kind == "end" and asked.id == "fails" and entries and (reason := entries[-1].get("reason")):
        return f"{asked.words}: {reason}"
    return asked.words


def _label(asked: Asked) -> str:
    """What people see beside it, where nobody encrypted it."""
    summary = asked.summary
    return str(from_json(summary.data)) if summary and summary.metadata.get("encoding") == b"json/plain" else ""


def _is_of(asked: Asked, command: dict[str, Any]) -> bool:
    """Whether something asked for is this command: in a history, an id may have been that of another one."""
    return asked.name.endswith(str(command.get("name") or command.get("skill") or command["kind"]))


def _entry_of(asked: Asked, entries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The entry that asked for something: its id names it, else it was the last one of its workflow task."""
    number, dot, _ = place(asked.id).partition(".")
    if asked.kind in ("activity", "child") and dot and number.isdigit():
        found = next((entry for entry in entries if entry["seq"] == int(number)), None)
        if found is not None:
            return found
    return next(
        (entry for entry in reversed(entries) if _moment(entry) <= asked.at + ROUNDED), next(iter(entries), None)
    )


def _moment(entry: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(entry["at"])
