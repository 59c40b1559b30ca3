"""Verifies an export without a server: each line's digest, the entries' numbers, and what the header claims.

What this cannot show: that nobody wrote the whole file anew, digests included. For that, compare the digests with those
of the server (`refold journal TASK --verify FILE`), or keep the last line's digest elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel, ValidationError
from pydantic_core import to_json

from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.schema import problems
from refold.core.values import Value
from refold.digests import DIGEST_BYTES
from refold.engine import TaskView
from refold.engine.arguments import takes
from refold.export.layout import DamagedExport, Header, Line, sealed
from refold.formats import NewerFormat, current_json
from refold.record import TaskRecord, record_of, with_entry

M = TypeVar("M", bound=BaseModel)


class _Redacted(Value):
    digest: str
    entry: dict[str, JsonValue]


class _History(Value):
    run_id: str
    history: dict[str, JsonValue]


class _End(Value):
    lines: int
    entries: int


class _Receipt(RootModel[dict[str, JsonValue]]):
    pass


class VerifiedTask(BaseModel):
    """One task of an export.

    Attributes:
        first: The number of its first entry.
        last: The number of its last entry.
        status: How it stood, or ended.
        digest: The digest of the journal after its last entry; None without entries.
    """

    model_config = ConfigDict(frozen=True)

    task_id: str
    skill: str
    first: int
    last: int
    status: str
    digest: str | None


class Verified(BaseModel):
    """What an export holds, each line of which is as it was written.

    Attributes:
        whole: Each entry is there as it was journaled; False for a redacted export, of which only the digests are.
        seal: The digest of the last line, which covers the file.
        tasks: The task, then its parts.
    """

    model_config = ConfigDict(frozen=True)

    whole: bool
    lines: int
    seal: str
    tasks: tuple[VerifiedTask, ...]


class Receiver:
    """Receives each line of an export after its check, in order. This one ignores them all."""

    def header(self, header: Header) -> None: ...

    def task(self, view: TaskView) -> None: ...

    def base(self, base: Snapshot) -> None: ...

    def entry(self, entry: Entry, digest: bytes) -> None: ...

    def receipt(self, receipt: dict[str, Any]) -> None: ...

    def history(self, run_id: str, history: dict[str, Any]) -> None: ...


@takes()
def verify(lines: Iterable[bytes], receiver: Receiver | None = None) -> Verified:
    """Read an export to its end.

    Args:
        lines: The file's lines, each with its line end.
        receiver: Gets what is read.

    Raises:
        DamagedExport: A line is not as it was written, or says something that does not fit the others.
    """
    check = _Check(receiver or Receiver())
    number = 0
    for number, raw in enumerate(lines, 1):
        check.take(Line.read(number, raw))
    if check.end is None:
        ends = "the file ends here, without the line `end`: its rest is missing" if number else "the file is empty"
        raise DamagedExport(number + 1, ends)
    return Verified(
        whole=not any(one.header.redacted for one in check.tasks),
        lines=number,
        seal=check.end.hex(),
        tasks=tuple(one.verified() for one in check.tasks),
    )


@dataclass(slots=True)
class _Task:
    """What is known so far of one task."""

    header: Header
    line: int
    view: TaskView | None = None
    record: TaskRecord | None = None
    last: int = 0
    digest: bytes = b""

    def of_today(self, line: Line, kind: str, body: bytes) -> bytes:
        """A snapshot's or an entry's JSON in the format of today; its digest is that of the JSON as it was written."""
        try:
            return current_json(kind, body, self.header.format)
        except NewerFormat as error:
            raise DamagedExport(line.number, str(error)) from None

    def verified(self) -> VerifiedTask:
        one = self.header
        return VerifiedTask(
            task_id=one.task_id,
            skill=one.skill,
            first=one.first,
            last=one.last,
            status=one.status,
            digest=self.digest.hex() or None,
        )


@dataclass(slots=True)
class _Check:
    receiver: Receiver
    seal: bytes = b""
    entries: int = 0
    end: bytes | None = None
    tasks: list[_Task] = field(default_factory=list)

    def take(self, line: Line) -> None:
        if self.end is not None:
            raise DamagedExport(line.number, "a line follows after the line `end`")
        self.seal = sealed(self.seal, line.kind, line.body)
        if line.kind == "entry":
            self._entry(line, line.body, line.digest)
            return
        if line.digest != self.seal:
            raise DamagedExport(
                line.number,
                f"its digest is {line.digest.hex()}, and that of what it and the lines before say is {self.seal.hex()}",
            )
        match line.kind:
            case "header":
                self._header(line)
            case "task":
                self._view(line)
            case "base":
                self._base(line)
            case "redacted":
                self._redacted(line)
            case "receipt":
                self._receipt(line)
            case "history":
                self._history(line)
            case _:
                self._end(line)

    def _header(self, line: Line) -> None:
        self._finish(line)
        self.tasks.append(_Task(header=_read(Header, line, line.body), line=line.number))
        self.tasks[-1].last = self.tasks[-1].header.first - 1
        self.receiver.header(self.tasks[-1].header)

    def _task(self, line: Line) -> _Task:
        if not self.tasks:
            raise DamagedExport(line.number, f"an export begins with its `header`, not with `{line.kind}`")
        return self.tasks[-1]

    def _seen(self, line: Line) -> _Task:
        """The task whose line `task` came before."""
        task = self._task(line)
        if task.view is None:
            raise DamagedExport(line.number, f"a `{line.kind}` comes before the `task` that it belongs to")
        return task

    def _view(self, line: Line) -> None:
        task, view = self._task(line), _read(TaskView, line, line.body)
        header = task.header
        if task.view is not None:
            raise DamagedExport(line.number, f"a second `task` for {header.task_id!r}; each has one, after its header")
        for name, claimed, found in (
            ("task_id", header.task_id, view.task_id),
            ("skill", header.skill, view.skill),
            ("status", header.status, view.status),
            ("reason", header.reason, view.reason),
            ("last entry", header.last, view.seq),
        ):
            _compare(line.number, f"the {name} of the header", claimed, found)
        task.view = view
        self.receiver.task(view)

    def _base(self, line: Line) -> None:
        task = self._seen(line)
        base = _read(Snapshot, line, task.of_today(line, "snapshot", line.body))
        _compare(line.number, "the task of the header", task.header.task_id, base.task_id)
        _compare(line.number, "the number of the entry before", task.last, base.seq)
        if task.record is None:
            _compare(line.number, "the skill's version in the header", task.header.skill_version, base.skill_version)
            task.record = record_of(base)
        self.receiver.base(base)

    def _entry(self, line: Line, body: bytes, digest: bytes) -> None:
        task = self._task(line)
        found = hashlib.sha256(task.digest + body).digest()[:DIGEST_BYTES]
        if found != digest:
            raise DamagedExport(
                line.number,
                f"entry {task.last + 1} has the digest {digest.hex()}, and that of what it and the entries before say "
                f"is {found.hex()}",
            )
        self._taken(line, task, body, digest)

    def _redacted(self, line: Line) -> None:
        task, read = self._task(line), _read(_Redacted, line, line.body)
        if not task.header.redacted:
            raise DamagedExport(line.number, "an entry is redacted, and the header does not say so")
        self._taken(line, task, to_json(read.entry), _hex(line, read.digest))

    def _taken(self, line: Line, task: _Task, body: bytes, digest: bytes) -> None:
        if task.record is None:
            raise DamagedExport(line.number, "an entry comes before the `base` of its run")
        entry = _read(Entry, line, task.of_today(line, "entry", body))
        _compare(line.number, "the number of the next entry", task.last + 1, entry.seq)
        task.last, task.digest = entry.seq, digest
        task.record = with_entry(task.record, entry)
        self.entries += 1
        self.receiver.entry(entry, digest)

    def _receipt(self, line: Line) -> None:
        self._seen(line)
        receipt = _read(_Receipt, line, line.body).root
        self.receiver.receipt(receipt)

    def _history(self, line: Line) -> None:
        self._seen(line)
        read = _read(_History, line, line.body)
        self.receiver.history(read.run_id, read.history)

    def _end(self, line: Line) -> None:
        self._finish(line)
        self._task(line)
        end = _read(_End, line, line.body)
        _compare(line.number, "the number of lines", end.lines, line.number)
        _compare(line.number, "the number of entries", end.entries, self.entries)
        self.end = line.digest

    def _finish(self, line: Line) -> None:
        """Compare the task that ends before this line with what its header claims."""
        if not self.tasks:
            return
        task, header = self.tasks[-1], self.tasks[-1].header
        where = f"of the header (line {task.line})"
        _compare(line.number, f"the last entry {where}", header.last, task.last)
        if task.view is None or task.record is None:
            raise DamagedExport(line.number, f"task {header.task_id!r} has no line `task`, or no `base`")
        if header.note or header.redacted:
            return  # the note says why the entries do not tell; a redacted text cannot be compared
        _compare(line.number, f"the status {where}", header.status, task.record.status)
        _compare(line.number, f"the reason {where}", header.reason, task.record.reason)
        said = [(one.role, one.content.text) for one in task.record.messages if one.content.text]
        claimed = {(one.role, one.text) for one in task.view.messages}
        if missing := next((one for one in said if one not in claimed), None):
            raise DamagedExport(line.number, f"the `task` leaves out a message that the entries hold: {missing!r}")


def _read(kind: type[M], line: Line, body: bytes) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        newer = "" if kind is not Header else "; it may have been written by a newer refold"
        raise DamagedExport(line.number, f"its `{line.kind}` cannot be read: {problems(error)}{newer}") from None


def _compare(line: int, what: str, claimed: object, found: object) -> None:
    if claimed != found:
        raise DamagedExport(line, f"{what} is {claimed!r}, and here is {found!r}")


def _hex(line: Line, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise DamagedExport(line.number, f"the digest of its entry is no hexadecimal number: {text!r}") from None
