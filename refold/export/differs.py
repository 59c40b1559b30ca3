"""Where today's code makes another journal of the recorded events than was recorded: the entry and the field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.core.authoring.skill import Live, Skill
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.divergence import Difference, difference_of
from refold.export.layout import ExportError


class CodeDiffers(ExportError):
    """Today's code would have written another entry than was recorded, so it cannot tell the state behind the record.

    Attributes:
        difference: The first one.
    """

    def __init__(self, difference: Difference) -> None:
        self.difference = difference
        super().__init__(
            f"the code at hand does not make the journal of task {difference.task_id!r}: {difference.found}. What "
            "happened is unchanged (`refold journal`, `refold show`); for the state, use the code that wrote the "
            f"entry, or an earlier entry than {difference.seq}"
        )


def refolded(skill: Skill, base: Snapshot, entries: Sequence[Entry]) -> Iterator[Snapshot]:
    """The task before and after each entry, by today's code.

    Raises:
        CodeDiffers: Today's code would write another entry; the snapshots before it are correct.
    """
    live, snapshot = Live(), base
    answers: dict[str, bool] = {}

    def patched(patch: str) -> bool:
        return answers.get(patch, False)  # the task never asked, since it is an older one

    yield snapshot
    for entry in entries:
        answers |= entry.patches
        if asked_anew := entry.patches.keys() & snapshot.patches.keys():  # of refold's own, in a new run
            known = {id: yes for id, yes in snapshot.patches.items() if id not in asked_anew}
            snapshot = snapshot.changed({"patches": known})
        snapshot, now = advance(skill, snapshot, entry.event, entry.at, live=live, patched=patched)
        if found := difference_of(base.task_id, entry, now):
            raise CodeDiffers(found)
        yield snapshot
