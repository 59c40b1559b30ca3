"""Replays histories with today's code, one after another, and says of each where it differs first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cache, partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer, WorkflowReplayResult, WorkflowRunner
from temporalio.workflow import NondeterminismError

from refold.compatibility import carried, entered
from refold.core.authoring.skill import Skill
from refold.core.errors import RefoldError
from refold.engine.arguments import defining, takes
from refold.temporal.data.inputs import start_from
from refold.temporal.data.storage import Off, Storage
from refold.temporal.data.storage_setting import storage_from_env
from refold.temporal.replay.asked import Asked, given_in, left_behind, recorded_in
from refold.temporal.replay.commands import first_command_difference, in_skill_terms
from refold.temporal.replay.divergence import Divergence, of_entries, step_before
from refold.temporal.replay.marks import compared
from refold.temporal.replay.stalls import HANGS, hangs, tried_again
from refold.temporal.replay.values import clear, data_in, name_of, stored_in
from refold.temporal.replay.watched import Seen, Watching
from refold.temporal.worker.logs import quiet
from refold.temporal.worker.plugin import RefoldPlugin, silently
from refold.temporal.worker.registry import workflows_of
from refold.temporal.worker.task.workflow import SkillWorkflow


class Replayed(BaseModel):
    """What the replay of one run came to.

    Attributes:
        task_id: The task; the file's name where a file could not be read.
        run_id: Temporal's id of the run; empty where a file could not be read.
        skill: The task's skill; likewise.
        entries: How many journal entries of this run today's code wrote.
        compared: `entries` where history holds the journal: what was asked, said, shown and decided was compared.
            `commands` where it does not, as for a task that is open: the commands and their arguments were.
        divergence: Where today's code differs first; None if nowhere.
        problem: Why the history could not be replayed or compared; empty if it could.
    """

    model_config = ConfigDict(frozen=True)

    task_id: str
    run_id: str = ""
    skill: str = ""
    entries: int = 0
    compared: Literal["entries", "commands"] = "commands"
    divergence: Divergence | None = None
    problem: str = ""

    @property
    def same(self) -> bool:
        """Whether today's code does what was recorded."""
        return self.divergence is None and not self.problem


class ReadOnly:
    """A storage that is read and never written: a replay writes what a task writes, and today's code may differ.

    Args:
        inner: Where values are read.
    """

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    @property
    def place(self) -> str:
        """See `Storage`."""
        return self._inner.place

    def ready(self) -> bool:
        """See `Storage`."""
        return True

    async def check(self) -> None:
        """See `Storage`."""

    async def put(self, key: str, data: bytes) -> None:
        """See `Storage`. Writes nothing."""

    async def now(self) -> float:
        """See `Storage`."""
        return await self._inner.now()

    async def used(self, key: str, *, since: float) -> bool:
        """See `Storage`. This storage removes nothing."""
        return False

    async def may_have_held(self, key: str) -> bool:
        """See `Storage`."""
        return await self._inner.may_have_held(key)

    async def remove(self, key: str, *, unused_since: float | None) -> str:
        """See `Storage`. Removes nothing."""
        return "this storage is only read"

    async def get(self, key: str) -> bytes:
        """See `Storage`."""
        return await self._inner.get(key)


def only_read(storage: Storage) -> Storage:
    """The storage for a replay: never written to. `Off` stays as it is, since it writes to histories alone."""
    return storage if isinstance(storage, Off) else ReadOnly(storage)


class _Plugin(RefoldPlugin):
    """The worker's plugin, which compares nothing itself: each history is compared once it is replayed to its end."""

    @asynccontextmanager
    async def run_replayer(
        self, replayer: Replayer, histories: AsyncIterator[WorkflowHistory], next: Callable[..., Any]
    ) -> AsyncIterator[AsyncIterator[WorkflowReplayResult]]:
        """See the SDK."""
        with silently(histories) as silent:
            async with next(replayer, silent) as results:
                yield results


@takes(defining("Replays", "replay"))
class Replays:
    """Replays histories with the skills at hand. Needs no server, performs no effect, and writes nowhere.

    Attributes:
        skills: The ids of the skills at hand.
    """

    def __init__(
        self, skills: Sequence[Any], tools: Sequence[Callable[..., Any]] = (), *, storage: Storage | None = None
    ) -> None:
        """Prepare the code.

        Args:
            skills: Skills, their workflow classes, or modules that hold them.
            tools: The functions declared with `@tool` that the skills' modules import.
            storage: Where large values are read; None takes `REFOLD_STORAGE`.

        Raises:
            DefinitionError: A skill or tool is defined wrongly, a skill has no workflow, or two share a name.
            CodecError: The codec that `REFOLD_CODEC` names is refused.
            StorageUnusable: `REFOLD_STORAGE` names no storage.
        """
        self._classes = {cls.type_name: cls for cls in workflows_of(skills)}
        read = only_read(storage or storage_from_env())
        self._plugin = _Plugin(list(self._classes.values()), tools, storage=read, mcp=())
        self._seen: dict[str, Seen] = {}
        self.skills = sorted(self._classes)

    async def each(self, histories: AsyncIterable[WorkflowHistory | Replayed]) -> AsyncGenerator[Replayed]:
        """Replay histories one by one, each as soon as it comes; nothing of it is kept afterwards.

        Args:
            histories: What to replay; what could not be read is passed on as it is.
        """
        aside: list[Replayed] = []

        async def fitting() -> AsyncGenerator[WorkflowHistory]:
            async for one in histories:
                settled = one if isinstance(one, Replayed) else self._settled(one)
                if settled is None:
                    assert isinstance(one, WorkflowHistory)
                    yield one
                else:
                    aside.append(settled)

        replayer = self._replayer()
        converter = replayer.config(active_config=True)["data_converter"]
        with quiet():
            async with aclosing(fitting()) as given, replayer.workflow_replay_iterator(given) as results:
                async for result in results:
                    while aside:
                        yield aside.pop(0)
                    forget = partial(self._seen.pop, result.history.run_id, None)
                    yield await self._judged(await tried_again(replayer, result, forget), converter)
        for one in aside:
            yield one

    def _replayer(self) -> Replayer:
        def watching(runner: WorkflowRunner | None) -> WorkflowRunner:
            assert runner is not None  # the plugin before brings its own
            return Watching(runner, lambda run_id: self._seen.setdefault(run_id, Seen()))

        watched = SimplePlugin("refold.replay", workflow_runner=watching)
        return Replayer(workflows=[], plugins=[self._plugin, watched], runtime=_runtime())

    def _settled(self, history: WorkflowHistory) -> Replayed | None:
        """What there is to say of a history that cannot be replayed, or has nothing to replay; None of any other."""
        started = history.events[0].workflow_execution_started_event_attributes
        skill = started.workflow_type.name
        told = partial(Replayed, task_id=history.workflow_id, run_id=history.run_id, skill=skill)
        if skill not in self._classes:
            known = ", ".join(self.skills) or "none"
            return told(problem=f"the code at hand has no skill {skill!r}; it has {known}")
        # sdk-core waits for ever for the first workflow task of a delayed task whose time has not come.
        return None if any(event.event_type == _SCHEDULED for event in history.events) else told()

    async def _judged(self, result: WorkflowReplayResult, converter: DataConverter) -> Replayed:
        history, failure = result.history, result.replay_failure
        seen = self._seen.pop(history.run_id, Seen())
        cls = self._classes[history.events[0].workflow_execution_started_event_attributes.workflow_type.name]
        told = {
            "task_id": history.workflow_id,
            "run_id": history.run_id,
            "skill": cls.type_name,
            "entries": len(seen.entries),
        }
        if hangs(failure):
            return Replayed(**told, problem=HANGS)
        failed = next((one.failure for one in seen.given if one.failure), "")
        if failure is not None and not isinstance(failure, NondeterminismError) and not failed:
            return Replayed(**told, problem=str(failure))
        try:
            if (unfit := await _unfit_state(history, cls.skill, converter, stands=not seen.entries)) is not None:
                return Replayed(**told, divergence=unfit)
            extent, found = await _divergence(history, seen, converter, fits=failure is None)
        except RefoldError as error:
            return Replayed(**told, problem=str(error))
        if found is None and failed:
            found = Divergence(
                entry=_last(seen), recorded="that the task goes on", now=f"that its code stops: {failed}"
            )
        elif found is None and failure is not None:
            found = Divergence(entry=_last(seen), recorded="other commands", now=str(failure))
        return Replayed(**told, compared=extent, divergence=found and _with_step(found, cls, seen))


_SCHEDULED = EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED


def _last(seen: Seen) -> int:
    return int(seen.entries[-1]["seq"]) if seen.entries else 0


def _with_step(found: Divergence, cls: type[SkillWorkflow], seen: Seen) -> Divergence:
    return found.model_copy(update={"step": step_before(cls.skill, seen.base, seen.entries, found.entry)})


async def _unfit_state(
    history: WorkflowHistory, skill: Skill, converter: DataConverter, *, stands: bool
) -> Divergence | None:
    """What today's code cannot read of the state that an open run began with; such a state is in no entry.

    Where the task `stands` as it did then, also why its next step cannot begin.
    """
    started = history.events[0].workflow_execution_started_event_attributes.input.payloads
    if len(started) != 1 or any(one.kind == "end" for one in recorded_in(history.events)):
        return None
    [payload] = await clear(started, converter)
    data = data_in(payload)
    if not isinstance(data, dict) or not data.get("snapshot"):
        return None
    saved = start_from([data]).snapshot
    if saved is None:
        return None
    why = carried(skill, saved).why_not or (entered(skill, saved).why_not if stands else "")
    if not why:
        return None
    step = skill.where(saved.state)
    return Divergence(entry=saved.seq, step=step, recorded=f"a state of version {saved.skill_version}", now=why)


async def _divergence(
    history: WorkflowHistory, seen: Seen, converter: DataConverter, *, fits: bool
) -> tuple[Literal["entries", "commands"], Divergence | None]:
    """What could be compared, and the first divergence; of two in one entry, the one that its fields tell."""
    recorded, now = list(recorded_in(history.events)), given_in(seen.given)
    found = await first_command_difference(recorded, now, converter, fits=fits)
    by_command = None if found is None else in_skill_terms(found, seen.entries)
    try:
        journal = await _journal(recorded, now, seen, converter)
    except RefoldError:
        upto, by_entry = await compared(history, seen, converter)
        if by_entry is None and by_command is None and upto < max(_last(seen), 1):
            raise  # the marks do not say that all of it is the same
    else:
        if journal is None:
            upto, by_entry = await compared(history, seen, converter)
        else:
            upto, by_entry = _last(seen), of_entries(journal, seen.entries)
    later = by_command is not None and by_entry is not None and by_entry.entry > by_command.entry
    return "entries" if upto else "commands", by_command if by_entry is None or later else by_entry


async def _journal(
    recorded: Sequence[Asked], now: Sequence[Asked], seen: Seen, converter: DataConverter
) -> Sequence[dict[str, Any]] | None:
    """The entries that the run's end recorded, as JSON data; None where the run has not ended, or left none."""
    left = left_behind(recorded)
    if left is None:
        return None
    [left] = await clear([left], converter)
    reference = _journal_in(data_in(left))
    if reference is None:
        return None
    own = left_behind(now)
    if own is not None and (today := _journal_in(data_in(own))) is not None and name_of(today) == name_of(reference):
        return seen.entries  # the same journal under the same name: it need not be read
    segment = await stored_in(reference, left, converter)
    found: Sequence[dict[str, Any]] = segment["entries"]
    return found


def _journal_in(left: Any) -> Any:
    """The run's own journal, as a `Stored`, in its result or in what the next run begins with."""
    if not isinstance(left, dict):
        return None
    if "snapshot" in left:
        earlier = left.get("earlier") or [{}]
        return earlier[-1].get("journal")
    return left.get("journal")


@cache
def _runtime() -> Runtime:
    """sdk-core, which would write each mismatch to stderr in its own words."""
    return Runtime(telemetry=TelemetryConfig(logging=None))
