"""`refold journal --verify`: an export by itself, or against the journal that the server has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from refold.cli.errors import DONE, TASK_FAILED, CallError
from refold.cli.verb import Call
from refold.core.fold.journal import Entry
from refold.digests import START, chained
from refold.export.layout import DamagedExport, Header
from refold.export.read import opened
from refold.export.verify import Receiver, Verified, verify


class _Digests(Receiver):
    """Collects the digests of an export's entries, by task."""

    def __init__(self) -> None:
        self.by_task: dict[str, dict[int, bytes]] = {}
        self._task = ""

    def header(self, header: Header) -> None:
        self._task = header.task_id
        self.by_task[self._task] = {}

    def entry(self, entry: Entry, digest: bytes) -> None:
        self.by_task[self._task][entry.seq] = digest


async def verified(call: Call, file: Path, task_id: str | None) -> int:
    """Verify an export, print what was found, and return the exit code."""
    digests = _Digests()
    try:
        with opened(file) as lines:
            found = verify(lines, digests)
    except DamagedExport as error:
        _say(call, file, None, [f"damaged: {error}"], line=error.line, problem=error.why)
        return TASK_FAILED
    problem = None if task_id is None else await _against_server(call, task_id, digests.by_task)
    lines_ = list(_lines(found))
    if task_id is not None:
        lines_.append(problem or f"the entries of {task_id} are those of the server")
    elif not found.whole:
        compare = call.again("journal", found.tasks[0].task_id, "--verify", str(file))
        problem = (
            "redacted: the file is as it was written, and the digests of its entries cannot be checked without the "
            f"entries; `{compare}` compares them with the server's"
        )
        lines_.append(problem)
    _say(call, file, found, lines_, problem=problem)
    return DONE if problem is None else TASK_FAILED


async def _against_server(call: Call, task_id: str, exported: dict[str, dict[int, bytes]]) -> str | None:
    """How the server's journal differs from the export; None if it begins with the same entries."""
    if task_id not in exported:
        raise CallError(f"the export holds no task {task_id!r}, but {', '.join(exported)}")
    ours, digest, last = exported[task_id], START, 0
    async for entry in (await call.engine()).journal(task_id):
        digest, last = chained(digest, entry), entry.seq
        if ours.get(entry.seq, digest) != digest:
            return (
                f"entry {entry.seq} differs: the export's digest is {ours[entry.seq].hex()}, and that of the server's "
                f"journal is {digest.hex()}; `refold journal` shows both, the export's by the name of its file"
            )
    if ours and max(ours) > last:
        return f"the export has entries up to {max(ours)}, and the server's journal ends with {last}"
    return None


def _lines(found: Verified) -> Iterator[str]:
    for one in found.tasks:
        count = one.last - one.first + 1
        entries = f"{count:,} entr{'y' if count == 1 else 'ies'}, {one.first} to {one.last}"
        yield f"{one.task_id}  {one.skill}  {one.status}  {entries}  digest {one.digest or 'none'}"
    yield f"{found.lines:,} lines, each as it was written; seal {found.seal}"


def _say(
    call: Call, file: Path, found: Verified | None, lines: list[str], *, problem: str | None, line: int | None = None
) -> None:
    if not call.out.json:
        call.out.say(*lines)
        return
    told = {} if found is None else found.model_dump(mode="json")
    where = {} if line is None else {"line": line}
    call.out.value({"file": str(file), "verified": problem is None, "problem": problem, **where, **told})
