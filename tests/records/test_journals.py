"""Every recorded journal comes out of the code as it is, byte for byte: live, cut at each event, and folded."""

import json
from pathlib import Path

import pytest

from refold.core.fold.snapshot import Snapshot
from tests.records import tapes

FILES = sorted(tapes.JOURNALS.glob("*.jsonl"))
EACH = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


@EACH
def test_a_journal_is_made_again(path: Path) -> None:
    """
    The same events give the same entries, snapshots and effects; and so they do where the task goes through JSON, and
    its running steps are forgotten, before each event.
    """
    tape, recorded = tapes.read(path)

    for way, cut in (("live", False), ("cut", True)):
        different = tapes.difference(path.stem, recorded, tapes.lines_of(tape, cut=cut))
        assert not different, f"{way}: {different}"


@EACH
def test_a_journal_is_folded(path: Path) -> None:
    """
    The recorded entries fold to the recorded snapshots, one by one and all at once.
    """
    tape, recorded = tapes.read(path)
    *each, last = tapes.folded(tape, tapes.entries_of(recorded))

    snapshots = [json.loads(line)["snapshot"] for line in recorded[1:-1]]
    for number, (snapshot, expected) in enumerate(zip(each, snapshots, strict=True), 2):
        assert tapes.hash_of(snapshot) == expected, f"{path.name}, line {number}: folded to {snapshot}"
    assert last == each[-1]


MADE = [path for path in FILES if tapes.read(path)[0].origin is not None]


@pytest.mark.parametrize("path", MADE, ids=[path.stem for path in MADE])
def test_a_task_is_made_of_another_one(path: Path) -> None:
    """
    Recovered, branched off or upgraded with the code as it is, a task begins as it was recorded to begin.
    """
    tape, _ = tapes.read(path)
    assert tape.origin is not None
    planned, first = tapes.begun(tape.origin, tape)

    recorded = Snapshot.model_validate_json(tape.planned).model_dump_json()
    assert not tapes.difference(path.stem, [recorded], [planned.model_dump_json()])
    assert first is None or tapes.compact(first.model_dump(mode="json")) == tape.events[0][0]
