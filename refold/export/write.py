"""Writes a task to an export, a line at a time: a task of any length takes the memory of one run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import to_json

from refold.core.commands import CallSkill
from refold.core.events import ChildAsked, CommandFailed, Event, SkillResult
from refold.core.fold.journal import Entry
from refold.core.fold.questions import TIMEOUT
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import TERMINAL, TaskState
from refold.digests import chained
from refold.engine import NoWorker, TaskNotFound, TaskView
from refold.engine.arguments import takes
from refold.export.layout import ExportError, Header, Line, sealed
from refold.export.redact import data, redacted, said


class Source(Protocol):
    """What is needed of an engine."""

    async def look(self, task_id: str) -> TaskView: ...

    def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]: ...


Receipts = Callable[[str], Awaitable[Iterable[Mapping[str, Any]]]]
"""The ledger's receipts of a task, by its id."""

Histories = Callable[[str], AsyncIterator[Mapping[str, Any]]]
"""Temporal's history of each run of a task, by its id, as `{"run_id": …, "history": …}`."""


@dataclass(slots=True)
class _Writer:
    """Numbers and seals the lines."""

    seal: bytes = b""
    before: bytes = b""
    lines: int = 0
    entries: int = 0

    def line(self, kind: str, body: BaseModel | Mapping[str, Any]) -> bytes:
        raw = body.model_dump_json().encode() if isinstance(body, BaseModel) else to_json(body)
        self.lines += 1
        self.seal = sealed(self.seal, kind, raw)
        return Line(self.lines, kind, raw, self.seal).written()

    def entry(self, entry: Entry, *, redact: bool) -> bytes:
        self.before = chained(self.before, entry)
        self.entries += 1
        if redact:
            return self.line("redacted", {"digest": self.before.hex(), "entry": redacted(entry)})
        line = self.line("entry", entry)
        return Line.read(self.lines, line).with_digest(self.before).written()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an export holds.

    Attributes:
        redact: Replace texts and values by their kind and size.
        parts: The tasks that are parts of the task, too, and their parts.
        receipts: Reads the ledger; None leaves receipts out.
        histories: Reads Temporal's histories; None leaves them out.
        gone: Called with the id of each part that is left out since it is not kept any more.
    """

    redact: bool = False
    parts: bool = False
    receipts: Receipts | None = None
    histories: Histories | None = None
    gone: Callable[[str], None] = lambda _: None


@takes()
async def written(engine: Source, task_id: str, wanted: Wanted = Wanted()) -> AsyncGenerator[bytes]:
    """The lines of a task's export.

    An open task is written as it stood when this began.

    Raises:
        ExportError: Histories are wanted redacted.
        NoWorker: The task, or a part of it, is open, and its worker does not answer.
        TaskNotFound: There is no such task, or a part of it was deleted while it was written.
        EngineError: As `Engine.look` and `Engine.past`.
    """
    if wanted.redact and wanted.histories is not None:
        raise ExportError(
            "Temporal's histories cannot be redacted: they hold each value as it was sent; leave --history or --redact"
        )
    writer = _Writer()
    todo: list[tuple[str, str | None]] = [(task_id, None)]
    begun = set[str]()
    while todo:
        id, part_of = todo.pop(0)
        section, lines_before = _Section(engine, writer, wanted, id, part_of), writer.lines
        try:
            async with aclosing(section.lines()) as lines:
                async for line in lines:
                    yield line
        except TaskNotFound:
            if part_of is None or writer.lines > lines_before:  # deleted meanwhile: half of it is written
                raise
            if id in begun:
                wanted.gone(id)
            continue
        begun |= section.begun
        if wanted.parts:
            todo += [(part, id) for part in section.parts]
    end = {"lines": writer.lines + 1, "entries": writer.entries}
    yield writer.line("end", end)


@dataclass(slots=True)
class _Section:
    """The lines of one task."""

    engine: Source
    writer: _Writer
    wanted: Wanted
    task_id: str
    part_of: str | None
    parts: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)

    async def lines(self) -> AsyncGenerator[bytes]:
        view = await self._view()
        redact, writer = self.wanted.redact, self.writer
        writer.before = b""
        begun = False
        async with aclosing(self.engine.past(self.task_id)) as past:
            async for one in past:
                if isinstance(one, Snapshot):
                    first, begun = not begun, True
                    if first:
                        # A recovered or forked task continues parts of the other task, which no entry of its own asks.
                        self.parts += [id for id, sent in one.pending.items() if isinstance(sent.command, CallSkill)]
                        yield writer.line("header", self._header(view, one))
                        yield writer.line("task", redacted(view) if redact else view)
                    if first or one.seq < view.seq:  # a later run's is left out with its entries
                        yield writer.line("base", redacted(one) if redact else one)
                elif one.seq <= view.seq:
                    self.parts += [sent.invocation_id for sent in one.commands if isinstance(sent.command, CallSkill)]
                    self.begun |= _heard_of(one.event)
                    yield writer.entry(one, redact=redact)
        for receipt in () if self.wanted.receipts is None else await self.wanted.receipts(self.task_id):
            yield writer.line("receipt", _redacted_receipt(receipt) if redact else receipt)
        if self.wanted.histories is not None:
            async for history in self.wanted.histories(self.task_id):
                yield writer.line("history", history)

    async def _view(self) -> TaskView:
        """The task as it stands; where Temporal ended it, the journal says which entry is the last.

        Raises:
            NoWorker: The task is open and has begun, but its worker did not answer: the view lacks most of the task.
        """
        view = await self.engine.look(self.task_id)
        if view.seq > 0 or view.lifecycle is TaskState.PLANNED:
            return view
        if view.lifecycle not in TERMINAL:
            raise NoWorker(f"task {self.task_id!r} cannot be exported: {view.note}")
        async with aclosing(self.engine.past(self.task_id)) as past:
            async for one in past:
                view = view.model_copy(update={"seq": one.seq})
        return view

    def _header(self, view: TaskView, base: Snapshot) -> Header:
        return Header(
            version=importlib.metadata.version("refold"),
            task_id=view.task_id,
            skill=view.skill,
            skill_version=base.skill_version,
            status=view.status,
            reason=said(view.reason) if self.wanted.redact else view.reason,
            first=base.seq + 1,
            last=view.seq,
            redacted=self.wanted.redact,
            part_of=self.part_of,
            note=said(view.note) if self.wanted.redact else view.note,
        )


_OF_BEGUN = {"TaskFailed", "TaskRejected", "canceled", "terminated", TIMEOUT}
"""The types of the failures of parts that have begun; others may say why a part could not."""


def _heard_of(event: Event) -> set[str]:
    """The id of a part that an event comes from. A part that is asked for may never begin."""
    match event:
        case ChildAsked(invocation_id=id):
            return {id}
        case SkillResult(invocation_id=id, outcome=outcome) if outcome.task_id == id:  # else an earlier part's
            return {id}
        case CommandFailed(invocation_id=id, failure=failure) if failure.type in _OF_BEGUN:
            return {id}
        case _:
            return set()


def _redacted_receipt(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """A receipt without its result: key, tool, states and times stay."""
    return {name: data(value) if name in ("result", "why", "holder") else value for name, value in receipt.items()}
