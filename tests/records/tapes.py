"""Recorded journals: how one is written, and how it is made again and compared, byte for byte.

A file holds a line for how the task began, one for each event, and one for what it had come to in the end. The line of
an event holds the entry, the fields of the snapshot that are other ones than before, each as a hash, the hash of the
snapshot's whole text, and what should be going on from then on, by key, with a hash of it. The last line holds the
last snapshot whole, and the fields of the task as people see it, each as a hash. All times and ids are in the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from refold import Event, skill_of
from refold.core.authoring.skill import Live
from refold.core.events import EVENT
from refold.core.fold.apply import advance, fold
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import wanted
from refold.core.lineage.upgrade import upgraded
from refold.core.values import shortened
from refold.differences import FieldDifference, first_difference, shown
from refold.engine.view import view_of
from refold.lineage.fork import fork
from refold.lineage.recover import recover

JOURNALS = Path(__file__).parent / "journals"


@dataclass(frozen=True, kw_only=True)
class Tape:
    """A task: how it began, and all that happened to it.

    Attributes:
        skill: Where the skill is, as `module:name`.
        planned: The task before its first event, as JSON.
        events: What happened, as JSON, and when.
        patched: The ids for which `ctx.patched` says yes; None for all.
        origin: How the task was made from another one's; None where it began by itself.
    """

    skill: str
    planned: str
    events: tuple[tuple[str, str], ...]
    patched: tuple[str, ...] | None = None
    origin: dict[str, Any] | None = None

    @property
    def compiled(self) -> Any:
        module, _, name = self.skill.partition(":")
        return skill_of(getattr(import_module(module), name))

    def answer(self) -> Callable[[str], bool] | None:
        """What answers `ctx.patched`."""
        ids = self.patched
        return None if ids is None else lambda id: id in ids


# --- writing


def lines_of(tape: Tape, *, cut: bool = False) -> list[str]:
    """The file of a tape, made with the code as it is.

    Args:
        tape: What happened.
        cut: Take the task through JSON, and forget running steps, before each event.
    """
    skill, live = tape.compiled, Live()
    snapshot = Snapshot.model_validate_json(tape.planned)
    lines = [_first_line(tape, snapshot)]
    for event, at in tape.events:
        before = snapshot
        if cut:
            before, live = Snapshot.model_validate_json(snapshot.model_dump_json()), Live()
        happened, when = EVENT.validate_json(event), datetime.fromisoformat(at)
        after, entry = advance(skill, before, happened, when, live=live, patched=tape.answer())
        lines.append(_line(snapshot, after, entry, event, at))
        snapshot = after
    return [*lines, _last_line(snapshot)]


def folded(tape: Tape, entries: Sequence[str]) -> list[str]:
    """The snapshots after each of these entries, folded one by one, and after all of them at once; as JSON."""
    skill, read = tape.compiled, [Entry.model_validate_json(entry) for entry in entries]
    base = snapshot = Snapshot.model_validate_json(tape.planned)
    found = []
    for entry in read:
        snapshot = fold(skill, snapshot, [entry])
        found.append(snapshot.model_dump_json())
    return [*found, fold(skill, base, read).model_dump_json()]


def _first_line(tape: Tape, snapshot: Snapshot) -> str:
    more = "" if tape.patched is None else f',"patched":{json.dumps(tape.patched)}'
    more += "" if tape.origin is None else f',"origin":{compact(tape.origin)}'
    return f'{{"skill":"{tape.skill}"{more},"planned":{snapshot.model_dump_json()}}}'


def _line(before: Snapshot, after: Snapshot, entry: Entry, event: str, at: str) -> str:
    text, whole = entry.model_dump_json(), after.model_dump_json()
    was, is_now = json.loads(before.model_dump_json()), json.loads(whole)
    names = [name for name in {**was, **is_now} if was.get(name) != is_now.get(name)]
    changed = {name: hash_of(compact(is_now[name]))[:8] if name in is_now else "" for name in names}
    going = {key: hash_of(to_json(want).decode())[:8] for key, want in wanted(after).items()}
    more = "" if _fed(text) == (event, at) else f'"event":{event},"at":"{at}",'
    return (
        f'{{{more}"entry":{text},"changed":{compact(changed)},"snapshot":"{hash_of(whole)}","going":{compact(going)}}}'
    )


def _last_line(snapshot: Snapshot) -> str:
    view = json.loads(view_of(snapshot).model_dump_json())
    shown = {name: hash_of(compact(value))[:8] for name, value in view.items()}
    return f'{{"snapshot":{snapshot.model_dump_json()},"view":{compact(shown)}}}'


def _fed(entry: str) -> tuple[str, str]:
    """The event of an entry and its time: mostly what `advance` was given."""
    read = json.loads(entry)
    return compact(read["event"]), read["at"]


def compact(value: Any) -> str:
    """JSON as pydantic writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def hash_of(text: str) -> str:
    """What stands for a long text in a line."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- reading


def read(path: Path) -> tuple[Tape, list[str]]:
    """A recorded file: what happened, and its lines."""
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    head, *rest, _ = (json.loads(line) for line in lines)
    events = []
    for line in rest:
        entry = line["entry"]
        events.append((compact(line.get("event", entry["event"])), line.get("at", entry["at"])))
    patched = head.get("patched")
    tape = Tape(
        skill=head["skill"],
        planned=compact(head["planned"]),
        events=tuple(events),
        patched=None if patched is None else tuple(patched),
        origin=head.get("origin"),
    )
    return tape, lines


def entries_of(lines: Sequence[str]) -> list[str]:
    """The entries in the lines of a file, as they were written."""
    return [compact(json.loads(line)["entry"]) for line in lines[1:-1]]


def begun(
    origin: dict[str, Any], tape: Tape, *, of: tuple[Snapshot, Sequence[Entry]] | None = None, folder: Path = JOURNALS
) -> tuple[Snapshot, Event | None]:
    """The task that is made from another one's snapshot or journal, and its first event.

    Args:
        origin: How: `how` is `upgrade`, `recover` or `fork`; the rest is what each of them takes.
        tape: The task that it makes; its skill is the code of today.
        of: The other task, before its first entry, and its journal; None reads what is recorded.
        folder: Where that is.
    """
    if origin["how"] == "upgrade":
        return upgraded(tape.compiled, Snapshot.model_validate_json(compact(origin["snapshot"]))), None
    if of is None:
        other, lines = read(folder / f"{origin['journal']}.jsonl")
        recorded = [Entry.model_validate_json(entry) for entry in entries_of(lines)]
        of = Snapshot.model_validate_json(other.planned), recorded
    base, entries = of
    args = (tape.compiled, base, entries[: origin["entries"]], origin["task_id"], datetime.fromisoformat(origin["at"]))
    if origin["how"] == "recover":
        return recover(*args, by=origin["by"], in_turn=origin.get("in_turn", False))
    return fork(*args, seq=origin["seq"], live=origin["live"], by=origin["by"])


def write(name: str, tape: Tape, folder: Path = JOURNALS) -> None:
    """Record a journal with the code as it is."""
    if tape.origin is not None:
        planned, _ = begun(tape.origin, tape, folder=folder)
        tape = replace(tape, planned=planned.model_dump_json())
    lines = lines_of(tape)
    (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


# --- comparing


def difference(name: str, recorded: Iterable[str], now: Iterable[str]) -> str:
    """Where two files differ first: file, line, field, and both values; empty if nowhere."""
    for number, (was, is_now) in enumerate(zip_longest(recorded, now, fillvalue=""), 1):
        if was != is_now:
            return f"{name}.jsonl, line {number}: {_where(was, is_now)}"
    return ""


def _where(was: str, is_now: str) -> str:
    if not (was and is_now):
        return f"only {'now' if is_now else 'recorded'}: {(was or is_now)[:500]}"
    found = first_difference(json.loads(was), json.loads(is_now))
    if found is None:
        at = next(n for n, (one, other) in enumerate(zip_longest(was, is_now)) if one != other)
        one, other = was[max(0, at - 60) : at + 60], is_now[max(0, at - 60) : at + 60]
        found = FieldDifference("equal as data, not as text", one, other)
    return f"field {found.path}\n  recorded: {_short(found.was)}\n  now:      {_short(found.now)}"


def _short(value: Any) -> str:
    return shortened(value, 1000) if isinstance(value, str) else shown(value, 1000)
