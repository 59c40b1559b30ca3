"""An exported task as verbs and programs read it: what `Engine` says of a task, without a server.

What was recorded needs no code: `look`, `record`, `journal`, `explain`. `at` and `fork` fold the journal by the skill's
code, which must still make it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from refold.core.authoring.skill import Skill
from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry, no_entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lineage.upgrade import upgraded
from refold.engine import Build, OffspringView, TaskExists, TaskNotFound, TaskView, UnknownSkill
from refold.engine.arguments import methods_take, takes
from refold.engine.refusals import check_task_id
from refold.export.differs import refolded
from refold.export.layout import ExportError
from refold.export.read import Exported, read_export
from refold.export.write import written
from refold.lineage.fork import fork, unforkable
from refold.record import Explanation, TaskRecord, explain, record_of, with_entries

Skills = Mapping[str, Skill]


@methods_take()
class ExportEngine:
    """The tasks of an export; methods as in `refold.engine.Engine`.

    A fork runs in memory, dry, and can be read and forked as the others while this engine exists.
    """

    @takes()
    def __init__(self, tasks: Sequence[Exported], skills: Skills | Callable[[], Skills] = dict) -> None:
        """An engine.

        Args:
            tasks: As `read_export` returns them.
            skills: Compiled skills by the ids that tasks name, a renamed one by its former id; or a function that loads
                them when `at` or `fork` needs one.
        """
        self.tasks = {one.task_id: one for one in tasks}
        self._skills = skills
        self._forks: set[str] = set()

    @classmethod
    def of(cls, file: Path, skills: Skills | Callable[[], Skills] = dict) -> ExportEngine:
        """The tasks of a file; errors as `read_export`."""
        return cls(read_export(file), skills)

    @property
    def task_id(self) -> str:
        """The id of the task that was exported; the others are its parts."""
        return next(iter(self.tasks))

    async def look(self, task_id: str) -> TaskView:
        """See `Engine.look`. The view's `note` says that it is an export."""
        view = self._task(task_id).view
        if task_id in self._forks:
            return view
        note = "as it was exported" + (", redacted" if self._task(task_id).header.redacted else "")
        return view.model_copy(update={"note": f"{view.note}; {note}" if view.note else note})

    async def offspring(self, task_id: str) -> tuple[OffspringView, ...]:
        """See `Engine.offspring`. An export does not know of tasks that go on from it."""
        return self._task(task_id).view.offspring

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        task = self._task(task_id)
        return with_entries(record_of(task.base), task.entries)

    async def builds(self, task_id: str) -> Sequence[Build]:
        """See `Engine.builds`. The digests of an export cover all its entries, and name no build."""
        return (Build(seq=self._task(task_id).view.seq),)

    async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""
        for entry in self._task(task_id).entries:
            if entry.seq > after:
                yield entry

    async def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """See `Engine.past`."""
        task = self._task(task_id)
        bases = {base.seq: base for base in task.bases}
        yield bases.pop(task.base.seq)
        for entry in task.entries:
            if entry.seq - 1 in bases:
                yield bases[entry.seq - 1]
            yield entry

    async def explain(self, task_id: str, field: str, *, upto: int | None = None) -> Explanation:
        """See `Engine.explain`."""
        return explain(self._task(task_id).entries, field, upto=upto)

    async def at(self, task_id: str, seq: int) -> Snapshot:
        """See `Engine.at`.

        Raises:
            InputRejected: There is no such entry.
            UnknownSkill: The skill's code is not there.
            CodeDiffers: Today's code would have written another journal up to the entry.
            ExportError: The export is redacted.
        """
        skill, base, entries = self._run(task_id, seq)
        *_, snapshot = refolded(skill, base, entries)
        return snapshot

    async def fork(
        self,
        task_id: str,
        *,
        at: int,
        live: bool = False,
        new_id: str | None = None,
        by: str | None = None,
        task_queue: str | None = None,
    ) -> TaskView:
        """See `Engine.fork`. Always dry, each command fails at once as `DryRun`; there are no task queues here.

        Raises:
            InputRejected: It is to be live; or as `Engine.fork`.
            TaskExists: The export has a task with the new id, or another fork has it.
            UnknownSkill, CodeDiffers, ExportError: As `at`.
        """
        if live:
            raise InputRejected("a fork of an export is dry: effects need workers; fork the task on its server")
        task = self._task(task_id)
        if why := unforkable(task_id, task.header.first, task.entries, at):
            raise InputRejected(why)
        skill, base, entries = self._run(task_id, at)
        for _ in refolded(skill, base, entries):
            pass
        numbered = (f"{task_id}.f{n}" for n in count(1))
        id = next(id for id in numbered if id not in self.tasks) if new_id is None else check_task_id(new_id)
        if id in self.tasks:
            raise TaskExists(id)
        now = entries[-1].at
        snapshot, first = fork(skill, base, entries, id, now, seq=at, by=by)
        from refold.testing.fake_engine import FakeEngine  # a large import, which only forks need

        engine = FakeEngine([skill], now=now)
        engine.skills = {snapshot.skill: skill}  # the id under which the task was recorded may be a former one
        view = await engine.begin(snapshot, first)
        [self.tasks[id]] = read_export([line async for line in written(engine, id)])
        self._forks.add(id)
        return view

    def _task(self, task_id: str) -> Exported:
        if task_id not in self.tasks:
            raise TaskNotFound(task_id)
        return self.tasks[task_id]

    def _run(self, task_id: str, seq: int) -> tuple[Skill, Snapshot, list[Entry]]:
        """The skill, the task before the run that has an entry, and that run's entries up to it."""
        task = self._task(task_id)
        if task.header.redacted:
            raise ExportError(
                f"the export of task {task_id!r} is redacted: its texts and values are gone, and so nothing can be "
                "computed from them; export the task without --redact"
            )
        if not task.header.first <= seq <= task.header.last:
            raise InputRejected(no_entry(task_id, seq, task.header.first, task.header.last))
        skills = self._skills() if callable(self._skills) else self._skills
        if task.header.skill not in skills:
            raise UnknownSkill(task.header.skill, list(skills))
        skill = skills[task.header.skill]
        base = next(base for base in reversed(task.bases) if base.seq < seq)
        entries = [entry for entry in task.entries if base.seq < entry.seq <= seq]
        return skill, upgraded(skill, base), entries
