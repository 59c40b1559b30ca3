"""Reads an export back: a damaged one is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.engine import TaskView
from refold.engine.arguments import takes
from refold.export.layout import DamagedExport, ExportError, Header
from refold.export.verify import Receiver, verify

SUFFIX = ".jsonl"
"""How the name of an export ends, where a verb takes the file in place of a task's id."""


@dataclass(slots=True, kw_only=True)
class Exported:
    """A task as its export holds it.

    Attributes:
        header: What the export says of it.
        view: The task as people saw it when it was exported.
        bases: The task before the first entry of each run.
        entries: The journal.
        digests: The journal's digest after each entry.
        receipts: The ledger's receipts.
        histories: Temporal's history of each run, by run id.
    """

    header: Header
    view: TaskView
    bases: list[Snapshot] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    histories: dict[str, Any] = field(default_factory=dict)

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.header.task_id

    @property
    def base(self) -> Snapshot:
        """The task before its first entry."""
        return self.bases[0]


@takes()
def read_export(file: Path | Iterable[bytes]) -> list[Exported]:
    """The task of an export, then its parts.

    Args:
        file: The file, or its lines.

    Raises:
        ExportError: There is no such file, or it cannot be read.
        DamagedExport: It is no export, or not as it was written.
    """
    reading = _Reading()
    if not isinstance(file, Path):
        verify(file, reading)
        return reading.tasks
    try:
        with opened(file) as lines:
            verify(lines, reading)
    except DamagedExport as error:
        raise DamagedExport(error.line, error.why, str(file)) from None
    return reading.tasks


@contextmanager
def opened(file: Path) -> Iterator[Iterable[bytes]]:
    """The lines of a file.

    Raises:
        ExportError: There is no such file, or it cannot be read, or not to its end.
    """
    try:
        with file.open("rb") as lines:
            yield lines
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        way_out = f"; `refold export TASK -o {quote(str(file))}` writes one" if missing else ""
        raise ExportError(f"the export {str(file)!r} cannot be read: {error.strerror}{way_out}") from None


class _Reading(Receiver):
    def __init__(self) -> None:
        self.tasks: list[Exported] = []
        self._header: Header | None = None

    def header(self, header: Header) -> None:
        self._header = header

    def task(self, view: TaskView) -> None:
        assert self._header is not None
        self.tasks.append(Exported(header=self._header, view=view))

    def base(self, base: Snapshot) -> None:
        self.tasks[-1].bases.append(base)

    def entry(self, entry: Entry, digest: bytes) -> None:
        self.tasks[-1].entries.append(entry)
        self.tasks[-1].digests.append(digest)

    def receipt(self, receipt: dict[str, Any]) -> None:
        self.tasks[-1].receipts.append(receipt)

    def history(self, run_id: str, history: dict[str, Any]) -> None:
        self.tasks[-1].histories[run_id] = history
