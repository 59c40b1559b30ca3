"""Kills the worker at every point of a task's execution, and checks that nothing is lost and nothing happens twice.

    async with dev_server() as server:                                   # refold.temporal.dev
        engine = TemporalEngine(await connected(address=server.address), "sweep")
        sweep = CrashSweep(
            engine,
            worker=crash_worker("workflows", "activities", address=server.address, task_queue="sweep"),
            before_each=gateway.forget,
            told=lambda: {"charges": len(gateway.charges), "mails": len(mail.inbox)},
        )
        report = await sweep.run("refund", Content.from_data({"order_id": "A1", "amount_cents": 100}), script=approve)

A run without a kill gives the expected result. Then the task is run again for each point: there its worker is killed
with SIGKILL, another worker continues, and the outcome, the journal and the counts of the services must be the same;
in the journal not the times, the task's id, the addresses of callbacks, and the order of what went on at once. A run
lasts until its task is over: until what it did is undone, where it fails. The points:

| point       | where the worker dies                                                                     |
| ----------- | ----------------------------------------------------------------------------------------- |
| `before`    | a command is in the journal, and nothing of it has been performed                         |
| `performed` | a tool has taken effect, but no receipt is written                                        |
| `after`     | the worker knows the effect's outcome, receipt included, but the journal does not         |
| `entry`     | an entry has just been written                                                            |

A sweep needs a server and starts real processes, so it takes seconds for each point; `points` selects some of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, Protocol
from uuid import uuid4

from pydantic import JsonValue

from refold.callbacks.address import token_of
from refold.core.commands import CallActivity, Callback, CallChat, CallLlm, CallTool
from refold.core.content import Content
from refold.core.events import ActivityResult
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import OPENED, UNDO
from refold.core.lineage.ids import place
from refold.engine import Engine, Listed, NoWorker, TaskFilter, TaskView
from refold.engine.arguments import takes
from refold.testing.answers import ScriptError
from refold.testing.callbacks import is_callback

OUTCOMES = ("_result", "command_failed")
"""How the kinds of events end that are a command's outcome."""

CRASH_AT = "REFOLD_CRASH_AT"
"""Where a worker of `refold.testing.crash_worker` kills itself: `POINT INVOCATION_ID`."""

PATIENCE_S = 90.0
"""Maximum seconds of one run; only a bug reaches it, or a gate's grace that is longer."""

LOOK_S = 0.1
"""How often a sweep asks whether a failed task is over, and whether approvers have been told, in seconds."""


class WorkerProcess(Protocol):
    """What a sweep needs of a worker's process; `asyncio.subprocess.Process` is one."""

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...

    @property
    def returncode(self) -> int | None: ...

    def send_signal(self, signal: int, /) -> None: ...

    async def wait(self) -> int: ...


Start = Callable[[Sequence[str], Mapping[str, str]], Awaitable[WorkerProcess]]
"""Starts a worker's process: with its command, and its whole environment."""

Script = Callable[[Engine, TaskView], Awaitable[None]]
"""Stands for people: called whenever the task waits, once the approvers of its gates have been told; answers it."""


class Kind(StrEnum):
    """Where a worker dies, relative to an effect or an entry."""

    BEFORE = "before"
    PERFORMED = "performed"
    AFTER = "after"
    ENTRY = "entry"


@dataclass(frozen=True, slots=True)
class Point:
    """Where a worker dies.

    Attributes:
        kind: See the table above.
        seq: The entry that issued the command; for `entry`, the entry itself.
        number: Which of that entry's commands it is; 0 for `entry`.
        undo: It is that command's compensation.
    """

    kind: Kind
    seq: int
    number: int = 0
    undo: bool = False

    @property
    def place(self) -> str:
        """The command's invocation id without the task's; the entry's number for `entry`."""
        return f"{self.seq}" + (f".{self.number}" if self.number else "") + (UNDO if self.undo else "")

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"


class SweepFailed(AssertionError):
    """A run with a kill had another result than the run without.

    Attributes:
        point: Where the worker was killed.
    """

    def __init__(self, point: Point, what: str, expected: object, found: object) -> None:
        self.point = point
        super().__init__(f"killed at {point}: {what} differs\nundisturbed: {expected}\nthis run:    {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run.

    Attributes:
        view: The status and the messages, without ids and times.
        journal: The entries, without ids and times.
        told: The counts of the services.
    """

    view: JsonValue
    journal: list[JsonValue]
    told: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a sweep.

    Attributes:
        outcome: Of every run.
        points: Where a worker was killed, in order; each in a run of its own.
    """

    outcome: Outcome
    points: tuple[Point, ...]


async def _nobody(engine: Engine, view: TaskView) -> None:
    raise AssertionError(f"task {view.task_id!r} waits for {[wait.slot for wait in view.waiting_for]}: give a script")


def _blocked(view: TaskView, point: Point | None) -> AssertionError:
    """What a run comes to whose task only an operator can continue: the journal would say so in this run alone."""
    why = "; ".join(f"{one.command} ({one.invocation_id}): {one.failure}" for one in view.unresolved)
    found = f"only an operator can continue the task, which no script does: {why}"
    if point is None:
        return AssertionError(f"undisturbed: {found}")
    return SweepFailed(point, "the task", "it goes on by itself, or the script answers it", found)


async def _start(command: Sequence[str], env: Mapping[str, str]) -> WorkerProcess:
    return await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )


@takes(ScriptError)
class CrashSweep:
    """Sweeps one skill. No other worker may serve the engine's task queue."""

    def __init__(
        self,
        engine: Engine,
        *,
        worker: Sequence[str],
        env: Mapping[str, str] | None = None,
        before_each: Callable[[], None] = lambda: None,
        told: Callable[[], JsonValue] = lambda: None,
        start: Start = _start,
    ) -> None:
        """Configure a sweep; starts nothing yet.

        Args:
            engine: Starts the tasks.
            worker: The command of a worker that serves the engine's task queue, prints a line once it polls, and obeys
                `REFOLD_CRASH_AT`; see `refold.testing.crash_worker`.
            env: Environment of the workers, besides this process's own.
            before_each: Called before each run; resets the services.
            told: Returns the counts of the services at a run's end: counts and amounts, without ids of tasks.
            start: Starts the workers' processes, where they are to run elsewhere or to be there sooner.
        """
        self.engine, self._start = engine, start
        self._command = list(worker)
        self._env = {**os.environ, **(env or {})}
        self._before_each, self._told = before_each, told

    async def run(
        self,
        skill: str,
        content: Content,
        *,
        script: Script = _nobody,
        points: Callable[[list[Point]], Sequence[Point]] = lambda all: all,
        owner: str | None = None,
    ) -> Report:
        """Run the sweep.

        Args:
            skill: The skill's id.
            content: The first message of every run.
            script: Answers the task whenever it waits.
            points: Selects some of all points, for a shorter sweep.
            owner: See `Engine.start`.

        Raises:
            SweepFailed: A run had another result.
        """
        expected, entries = await self._once(None, skill, content, script, owner)
        chosen = list(points(list(_points(entries))))
        for point in chosen:
            found, _ = await self._once(point, skill, content, script, owner)
            for what in ("told", "view", "journal"):
                if getattr(found, what) != getattr(expected, what):
                    raise SweepFailed(point, what, *_difference(getattr(expected, what), getattr(found, what)))
        return Report(outcome=expected, points=tuple(chosen))

    async def _once(
        self, point: Point | None, skill: str, content: Content, script: Script, owner: str | None
    ) -> tuple[Outcome, list[Entry]]:
        self._before_each()
        task_id = f"sweep-{uuid4().hex[:12]}"
        crash = "" if point is None or point.kind is Kind.ENTRY else f"{point.kind} {task_id}/{point.place}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                async with _Crew(self._command, self._env, self._start) as crew:
                    await crew.hire(crash)
                    await self.engine.start(skill, content, task_id=task_id, owner=owner)
                    killed = asyncio.Event()
                    await _first(self._play(task_id, script, point, killed), self._kill(crew, task_id, point, killed))
                    view = await self.engine.look(task_id)
        except TimeoutError:
            said = await self.engine.look(task_id)
            raise AssertionError(f"killed at {point}: not over within {PATIENCE_S:g} s; it is {said}") from None
        entries = [entry async for entry in self.engine.journal(task_id)]
        alike = {task_id: "TASK", **_addresses(entries)}
        return Outcome(view=_seen(view, alike), journal=_without_ids(entries, alike), told=self._told()), entries

    async def _kill(self, crew: _Crew, task_id: str, point: Point | None, killed: asyncio.Event) -> NoReturn:
        """Kill the worker at the point, if any, and start another one. Raises once a worker ends by itself."""
        if point is not None:
            if point.kind is Kind.ENTRY:
                async for item in self.engine.watch(task_id, follow=True):
                    if isinstance(item, Entry) and item.seq >= point.seq:
                        break
                crew.kill()
            code = await crew.gone()
            assert code == -signal.SIGKILL, f"the worker ended with {code}, and not by SIGKILL"
            await crew.hire("")
        killed.set()
        raise AssertionError(f"the worker ended with {await crew.gone()}, and nobody killed it")

    async def _play(self, task_id: str, script: Script, point: Point | None, killed: asyncio.Event) -> None:
        """Answer the task until it is over and its worker was killed."""
        while True:
            # The watch ends when the task waits or ends, or when no worker answers.
            with suppress(NoWorker):
                async for _ in self.engine.watch(task_id):
                    pass
            view = await self.engine.look(task_id)
            if view.unresolved:
                raise _blocked(view, point)
            if view.lifecycle == "failed":
                await self._over(view)
            if view.lifecycle in ("done", "failed"):
                await killed.wait()
                return
            if any(one.invocation_id.endswith(OPENED) for one in view.pending):
                await asyncio.sleep(LOOK_S)  # approvers are told first: else the order of the two entries is chance
            elif view.waiting_for:
                await script(self.engine, view)

    async def _over(self, view: TaskView) -> None:
        """Wait until nothing of a failed task is compensated any more, and no grant comes late."""
        wanted = TaskFilter(skill=view.skill, begins=view.task_id)
        found: Sequence[Listed] = ()
        while not any(one.over for one in found if one.task_id == view.task_id):
            await asyncio.sleep(LOOK_S)
            found = await self.engine.find(wanted)


class _Crew:
    """One worker at a time."""

    def __init__(self, command: list[str], env: Mapping[str, str], start: Start) -> None:
        self._command, self._env, self._start = command, env, start
        self._process: WorkerProcess | None = None
        self._reading: asyncio.Task[bytes] | None = None

    async def __aenter__(self) -> _Crew:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def hire(self, crash_at: str) -> None:
        self._process = process = await self._start(self._command, {**self._env, CRASH_AT: crash_at})
        assert process.stdout is not None
        line = await process.stdout.readline()
        assert line, f"the worker ended with {await process.wait()} before it polled"
        self._reading = asyncio.create_task(process.stdout.read())  # else the pipe fills, and the worker stops

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    async def gone(self) -> int:
        assert self._process is not None
        return await self._process.wait()


async def _first(*parts: Coroutine[Any, Any, None]) -> None:
    """Run coroutines together until one of them ends, and end the others with it."""
    tasks = [asyncio.create_task(one) for one in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _points(entries: Sequence[Entry]) -> Iterator[Point]:
    for entry in entries:
        for issued in entry.commands:
            match issued.command:
                case CallTool():
                    kinds: tuple[Kind, ...] = (Kind.BEFORE, Kind.PERFORMED, Kind.AFTER)
                case CallLlm() | CallChat():
                    kinds = (Kind.BEFORE, Kind.AFTER)
                case _:
                    continue
            of, undo, _ = place(issued.invocation_id).partition(UNDO)
            seq, number = map(int, of.split("."))
            yield from (Point(kind, seq, number, bool(undo)) for kind in kinds)
        if not entry.ends:  # whether a worker dies after the end does not matter to the task
            yield Point(Kind.ENTRY, entry.seq)


# Times are the clock's, even an approver's own; the last of them are those of a part's questions.
_TIMES: Any = {
    "at": True,
    "event": {"said_at": True, "waits": {"__all__": {"since": True, "grants": {"__all__": {"said_at"}}}}},
    "backoffs": {"__all__": {"due_at"}},
    "audit": {"__all__": {"started_at": True, "finished_at": True, "err": {"at"}}},
}

# A wait is spread by a hash of the task's id.
_TIMES_NOTED = re.compile(r"(?<= in )[0-9.e+-]+(?= s\b)|(?<= at )\d\d:\d\d:\d\d\b")


def _addresses(entries: Sequence[Entry]) -> dict[str, str]:
    """What stands in place of callbacks' addresses, their digests and the times at which they expire."""
    asked = {one.invocation_id: one.command for entry in entries for one in entry.commands if is_callback(one.command)}
    found: dict[str, str] = {}
    for event in (entry.event for entry in entries):
        if isinstance(event, ActivityResult) and (command := asked.get(event.invocation_id)) is not None:
            made, of = Callback.model_validate(event.value), command.id
            assert isinstance(command, CallActivity)
            untils = (str(command.args[0]), made.model_dump(mode="json")["until"])
            found |= {token_of(made.url): f"ADDRESS {of}", made.digest: f"DIGEST {of}"}
            found |= dict.fromkeys(untils, f"UNTIL {of}")
    return found


def _seen(view: TaskView, alike: Mapping[str, str]) -> JsonValue:
    fields = {"skill", "status", "lifecycle", "reason", "messages", "artifacts"}
    told: JsonValue = _read(view.model_dump_json(include=fields), alike)
    return told


def _without_ids(entries: Sequence[Entry], alike: Mapping[str, str]) -> list[JsonValue]:
    found = [_read(entry.model_dump_json(exclude=_TIMES), alike) for entry in entries]
    for one in found:
        if "note" in one:
            one["note"] = _TIMES_NOTED.sub("…", one["note"])
    return in_one_order(found)


def _read(text: str, alike: Mapping[str, str]) -> Any:
    for one, other in alike.items():
        text = text.replace(one, other)
    return json.loads(text)


def in_one_order(entries: list[Any]) -> list[Any]:
    """A journal whose outcomes are in one order, up to the entry that asks for something else: of what goes on at once,
    anything may be done first, and more so after a kill."""
    group: list[Any] = []
    for entry in [*entries, None]:
        is_outcome = entry is not None and entry["event"]["kind"].endswith(OUTCOMES)
        if is_outcome:
            group.append(entry)
        if not is_outcome or entry.get("commands"):
            for one, event in zip(group, sorted((one["event"] for one in group), key=json.dumps), strict=True):
                one["event"] = event
            group = []
    return entries


def _difference(expected: object, found: object) -> tuple[object, object]:
    """The first entries that differ, of two journals; all of it otherwise."""
    if isinstance(expected, list) and isinstance(found, list):
        for one, other in zip(expected, found, strict=False):
            if one != other:
                return one, other
        return f"{len(expected)} entries", f"{len(found)} entries"
    return expected, found
