"""Where today's code makes another journal of the recorded events than was recorded: the entry and the field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pydantic import JsonValue
from pydantic_core import to_json

from refold.core.authoring.skill import Live, Skill
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.values import Value, lean, shortened
from refold.export.layout import ExportError

SHOWN_CHARS = 200


class Difference(Value):
    """One field of an entry that today's code would write differently.

    Attributes:
        seq: The entry.
        field: The entry's field.
        recorded: Its value in the journal, as JSON.
        now: Its value by today's code, as JSON.
    """

    seq: int
    field: str
    recorded: JsonValue = lean()
    now: JsonValue = lean()

    def __str__(self) -> str:
        recorded, now = (shortened(to_json(one).decode(), SHOWN_CHARS) for one in (self.recorded, self.now))
        return f"entry {self.seq}, field {self.field!r}: recorded {recorded}, with today's code {now}"


class CodeDiffers(ExportError):
    """Today's code would have written another entry than was recorded, so it cannot tell the state behind the record.

    Attributes:
        difference: The first one.
    """

    def __init__(self, task_id: str, difference: Difference) -> None:
        self.difference = difference
        super().__init__(
            f"the code at hand does not make the journal of task {task_id!r}: {difference}. What happened is unchanged "
            "(`refold journal`, `refold show`); for the state, use the code that wrote the entry, or an earlier entry "
            f"than {difference.seq}"
        )


def difference(recorded: Entry, now: Entry) -> Difference | None:
    """The first field in which two entries of one number differ; None if they are equal."""
    if recorded == now:
        return None
    ours, theirs = recorded.model_dump(mode="json"), now.model_dump(mode="json")
    # An old task answers False to a patch that it never asked for, and says so.
    names = [name for name in Entry.model_fields if name != "patches" and ours.get(name) != theirs.get(name)]
    if not names:
        return None
    return Difference(seq=recorded.seq, field=names[0], recorded=ours.get(names[0]), now=theirs.get(names[0]))


def refolded(skill: Skill, base: Snapshot, entries: Sequence[Entry]) -> Iterator[Snapshot]:
    """The task before and after each entry, by today's code.

    Raises:
        CodeDiffers: Today's code would write another entry; the snapshots before it are correct.
    """
    live, snapshot = Live(), base
    yield snapshot
    for entry in entries:
        snapshot, now = advance(skill, snapshot, entry.event, entry.at, live=live, patched=partial(_answer, entry))
        if found := difference(entry, now):
            raise CodeDiffers(base.task_id, found)
        yield snapshot


def _answer(entry: Entry, patch: str) -> bool:
    """What `ctx.patched` answers: as recorded; False if the task never asked, since it is an older one."""
    return entry.patches.get(patch, False)
