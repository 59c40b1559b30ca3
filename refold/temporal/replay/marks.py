"""A replayed journal beside the marks in its history: what a worker compares when it rebuilds a task."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import to_json
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from refold.core.fold.journal import Entry
from refold.digests import digest_after
from refold.divergence import as_recorded
from refold.temporal.data.inputs import start_from
from refold.temporal.data.marks import Mark, marks_of
from refold.temporal.recorded.reading import words_of
from refold.temporal.replay.divergence import Divergence, event_of, of_entries
from refold.temporal.replay.values import clear, data_in
from refold.temporal.replay.watched import Seen


async def compared(history: WorkflowHistory, seen: Seen, converter: DataConverter) -> tuple[int, Divergence | None]:
    """How far the marks of a history reach, and where a replayed journal differs from them.

    Returns:
        The number of the last entry that a mark covers, 0 without marks; and the first difference, None if there is
        none.

    Raises:
        StorageError: What an entry said is in a storage that cannot be read.
        CodecError: The codec cannot read it.
    """
    marks = await marks_of(history.events, converter, words=False)
    if not marks or not seen.entries:
        return 0, None
    [payload] = await clear(history.events[0].workflow_execution_started_event_attributes.input.payloads, converter)
    digest = bytes.fromhex(start_from([data_in(payload)]).chain)
    entries = [Entry.model_validate_json(to_json(entry)) for entry in seen.entries]
    for mark in marks:
        new = [entry for entry in entries if entry.seq <= mark.seq]
        digest, entries = digest_after(new, digest), entries[len(new) :]
        if new and new[-1].seq == mark.seq and digest != mark.digest:
            return marks[-1].seq, await _first(history, new, mark, digest, converter)
    return marks[-1].seq, None


async def _first(
    history: WorkflowHistory, entries: Sequence[Entry], mark: Mark, digest: bytes, converter: DataConverter
) -> Divergence:
    """What differs in entries that a mark covers and the mark before does not."""
    words = await words_of(history.events, converter)
    for now in entries:
        if now.seq < words.since:
            break  # written by a release without marks
        recorded = as_recorded(history.workflow_id, now, words.said.get(now.seq), words.inputs)
        found = of_entries([recorded.model_dump(mode="json")], [now.model_dump(mode="json")])
        if found is not None:
            return found
    upto = "" if len(entries) == 1 else f", or a later one up to {mark.seq},"
    event = event_of(entries[0].model_dump(mode="json"))
    here = f"another entry{upto} with the digest {mark.digest.hex()}; history has no words for what differs"
    return Divergence(entry=entries[0].seq, event=event, recorded=here, now=f"one with the digest {digest.hex()}")
