"""One script of operations on both engines, the one for tests and the one on Temporal: what their callers are told.

Both give the same ids to tasks, parts, gates and commands, so what they say is compared as it is, but for times.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.testing import TimeSkipper

from refold import Content, TaskState
from refold.core.errors import RefoldError
from refold.engine import Decision, Engine, TaskFilter, TaskView
from refold.temporal import TemporalEngine
from refold.testing import FakeEngine
from tests.temporal import parity_skills
from tests.temporal.test_task import collected
from tests.waiting import a_moment

Call = Callable[[Any, str], Awaitable[object]]
"""What is done: given an engine and the id of the script's task."""

LATEST_S = 30.0
"""How long the task on Temporal may take to come where the other one is at once, in seconds; else they differ."""

_TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?|\d\d:\d\d:\d\d")
_STATUS = re.compile(r"goes on for it \([a-z-]+\)")
"""The server's index does not say that a task waits for its part's answer."""
_OF_TIME = ("at", "said_at", "updated_at")


@dataclass(frozen=True, slots=True)
class Op:
    """An operation.

    Attributes:
        name: For people.
        call: What both engines are asked; None where the clock moves.
        seconds: How far the clock moves.
    """

    name: str
    call: Call | None = None
    seconds: float = 0.0


# --- the operations; `of` is the end of the id of the task that they are for: "/1.1" is the first part, ".r1" the task
# that recovers the script's


def start(skill: str, said: object = None, **options: Any) -> Op:
    """Start the script's task; without `said` with its id, by which `broken` and `mended` know it."""

    async def call(engine: Engine, task: str) -> object:
        return await engine.start(skill, content(task if said is None else said), task_id=task, **options)

    return Op(f"start {skill} {said!r} {options}", call)


def send(said: object, slot: str | None = None, *, of: str = "", **options: Any) -> Op:
    def call(engine: Engine, task: str) -> Awaitable[object]:
        return engine.send(task + of, content(said), slot=slot, **options)

    return Op(f"send {said!r} to {of!r} {slot} {options}", call)


def decide(gate: str | None, *, by: str = "ada", yes: bool = True, of: str = "", **options: Any) -> Op:
    options = {"vouched_by": "the test", **options}

    def call(engine: Engine, task: str) -> Awaitable[object]:
        return engine.decide(task + of, gate, approved=yes, approver=by, **options)

    return Op(f"decide {yes} at {gate} of {of!r} by {by} {options}", call)


def decide_as_shown(gate: str) -> Op:
    """Decide by the digest that the gate shows."""

    async def call(engine: Engine, task: str) -> object:
        view = await engine.look(task)
        digest = next((wait.digest for wait in view.waiting_for if wait.slot == gate), "none")
        return await engine.decide(task, gate, approved=True, approver="ada", digest=digest, vouched_by="the test")

    return Op(f"decide at {gate} as it is shown", call)


def together(*gates: tuple[str, bool], of: str = "") -> Op:
    said = [Decision(gate=gate, approved=yes) for gate, yes in gates]

    def call(engine: Engine, task: str) -> Awaitable[object]:
        return engine.decide_together(task + of, said, approver="ada", vouched_by="the test")

    return Op(f"decide together {gates} of {of!r}", call)


def cancel(reason: str = "", *, of: str = "") -> Op:
    return Op(f"cancel {of!r} {reason!r}", lambda engine, task: engine.cancel(task + of, reason=reason, by="ada"))


def release(*, of: str = "") -> Op:
    return Op(f"release {of!r}", lambda engine, task: engine.release(task + of))


def resolve(*, of: str = "", **options: Any) -> Op:
    return Op(f"resolve {of!r} {options}", lambda engine, task: engine.resolve(task + of, **options))


def recover(*, of: str = "") -> Op:
    return Op(f"recover {of!r}", lambda engine, task: engine.recover(task + of, by="ada"))


def fork(at: int, *, of: str = "", into: str | None = None, **options: Any) -> Op:
    def call(engine: Engine, task: str) -> Awaitable[object]:
        return engine.fork(task + of, at=at, new_id=None if into is None else into.replace("TASK", task), **options)

    return Op(f"fork {of!r} at {at} into {into} {options}", call)


def ask(name: str, *args: object, of: str = "", **options: Any) -> Op:
    """Call a method that only looks."""

    async def call(engine: Engine, task: str) -> object:
        found = getattr(engine, name)(task + of, *args, **options)
        return [one async for one in found] if hasattr(found, "__aiter__") else await found

    return Op(f"{name} {of!r} {args} {options}", call)


def passes(seconds: float) -> Op:
    return Op(f"{seconds:g} s pass", seconds=seconds)


def broken() -> Op:
    """From here on, the tools fail for the script's task."""
    return Op("broken", _noted(parity_skills.BROKEN.add))


def mended() -> Op:
    return Op("mended", _noted(parity_skills.BROKEN.discard))


def _noted(note: Callable[[str], None]) -> Call:
    async def call(engine: Engine, task: str) -> None:
        note(task)

    return call


def content(said: Any) -> Content:
    return Content.from_text(said) if isinstance(said, str) else Content.from_data(said)


# --- both engines


@dataclass(slots=True)
class Both:
    """One script on both engines.

    Attributes:
        temporal: The engine on Temporal.
        task: The id of the script's task, of no other.
        told: What was done, and what both said to it.
        views: All tasks of the script, parts included, as they are now.
    """

    temporal: TemporalEngine
    task: str
    fake: FakeEngine = field(default_factory=partial(FakeEngine, parity_skills.SKILLS, tools=parity_skills.TOOLS))
    told: list[str] = field(default_factory=list)
    views: dict[str, TaskView] = field(default_factory=dict)

    async def play(self, script: Iterable[Op]) -> str:
        """Carry out a script; returns the first difference, and what was done before it; empty without any."""
        for op in script:
            found = await self._one(op) or await self._same_tasks()
            if found:
                return "\n  ".join([self.task, *self.told, f"{op.name}: {found}"])
        return await self._same_journals()

    async def _one(self, op: Op) -> str:
        if op.call is None:
            await self._pass(op.seconds)
            self.told.append(op.name)
            return ""
        here = await said(op.call(self.fake, self.task))
        there = await said(op.call(self.temporal, self.task))
        found = difference(here, there)
        if not found:
            self.told.append(f"{op.name}: {str(here)[:300]}")
        return found

    async def _pass(self, seconds: float) -> None:
        skipper = TimeSkipper(self.temporal.client)
        for id in await self._tasks():
            handle = self.temporal.client.get_workflow_handle(id)
            if (await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
                with suppress(RPCError):  # it has ended meanwhile
                    await skipper.fast_forward(handle, timedelta(seconds=seconds))
        await self.fake.advance(seconds)

    async def _same_tasks(self) -> str:
        """Wait until each task is where it is in the engine for tests; returns how one differs if it never is."""
        over_by_id = await self._tasks()
        self.views = {id: await self.fake.look(id) for id in over_by_id}
        for id, over in over_by_id.items():
            found = ""
            try:
                async with asyncio.timeout(LATEST_S):
                    while found := await self._differs(id, over):
                        await a_moment()
            except TimeoutError:
                return f"{id}: {found}"
        return ""

    async def _differs(self, id: str, over: bool) -> str:
        here, there = await said(self.fake.look(id)), await said(self.temporal.look(id))
        if isinstance(there, str):
            return there
        here, there = plain(here), plain(there)
        if found := difference(here, there):
            return found
        status = (await self.temporal.client.get_workflow_handle(id).describe()).status
        return "" if over is (status is not WorkflowExecutionStatus.RUNNING) else f"over: {over}; {status}"

    async def _same_journals(self) -> str:
        for id in await self._tasks():
            here, there = await said(collected(self.fake.journal(id))), await said(collected(self.temporal.journal(id)))
            if found := difference(here, there):
                return "\n  ".join([self.task, *self.told, f"journal of {id}: {found}"])
        return ""

    async def _tasks(self) -> dict[str, bool]:
        """The ids of all tasks of the script, parts included, and whether each is over."""
        found = await self.fake.find(TaskFilter(), limit=10_000)
        return {one.task_id: one.over for one in sorted(found, key=lambda one: one.task_id)}


async def said(answer: Awaitable[object]) -> object:
    """What a caller is told: data without times, or the error. A task that is still at work is compared later."""
    try:
        found = await answer
    except (RefoldError, ValueError) as error:
        return f"{type(error).__name__}: {_STATUS.sub('goes on for it', _TIMES.sub('TIME', str(error)))}"
    return found


def plain(value: Any) -> Any:
    """A value as data; of times, only whether they are there."""
    match value:
        case BaseModel():
            return plain(value.model_dump(mode="json"))
        case dict():
            return {key: one and "TIME" if key in _OF_TIME else plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case str():
            return _TIMES.sub("TIME", value)
        case _:
            return value


def difference(here: object, there: object, at: str = "") -> str:
    """Where two answers differ, in short; empty if they do not. Of two views of a task, only that both are."""
    if isinstance(here, TaskView) and isinstance(there, TaskView):
        return ""
    here, there = plain(here), plain(there)
    if isinstance(here, dict) and isinstance(there, dict):
        found = (difference(here.get(key), there.get(key), f"{at}.{key}") for key in here | there)
        return next((one for one in found if one), "")
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        found = (difference(one, other, f"{at}[{n}]") for n, (one, other) in enumerate(zip(here, there, strict=True)))
        return next((one for one in found if one), "")
    return "" if here == there else f"{at}\n    in tests:    {str(here)[:1000]}\n    on Temporal: {str(there)[:1000]}"


# --- scripts by chance

STARTS: dict[str, Sequence[object]] = {
    "p_asks": ["go", {"a": 1}],
    "p_gates": [
        {},
        {"needed": 2},
        {"approvers": ["ada", "bo"]},
        {"second_person": True},
        {"on_denied": "continue"},
        {"allow_unsigned": True},
        {"on_timeout": "continue"},
        {"timeout_s": None},
        {"grace_s": 0},
        {"needed": "x"},
        "no limits",
    ],
    "p_part_gates": [{}, {"needed": 2}, {"second_person": True}, {"on_timeout": "continue"}],
    "p_works": [None],
    "p_rejects": [None],
    "p_sleeps": [None],
    "p_catches": [None],
    "p_interrupted": [None],
}
"""The skills, and what each may be started with."""


def by_chance(both: Both, skill: str, seed: int) -> Iterator[Op]:
    """A script for a skill; the same for the same seed. Most of it fits how the tasks stand when it comes to it."""
    chance = random.Random(f"{skill} {seed}")
    if chance.random() < 0.4:
        yield broken()
    options = _options(chance)
    begins = start(skill, chance.choice(STARTS[skill]), **options)
    yield begins
    for _ in range(chance.randint(3, 9)):
        rarely: list[Callable[[], Op]] = [broken, mended, mended, lambda: begins, lambda: start("p_works", "other")]
        likely = [_sent, _decided, _ends, _ends, _forked, _looks, *([] if skill in WITH_PARTS else [_time])]
        view = chance.choice([None, *both.views.values(), *both.views.values()])
        of = "-nobody" if view is None else view.task_id.removeprefix(both.task)
        if chance.random() < 0.1:
            yield chance.choice(rarely)()
        elif view is not None and chance.random() < 0.5:
            yield _fitting(chance, view, of, parts=skill in WITH_PARTS)
        else:
            yield chance.choice(likely)(chance, of)


def _options(chance: random.Random) -> dict[str, Any]:
    later: dict[str, Any] = chance.choice([{}] * 8 + [{"hold": True}, {"start_delay": timedelta(seconds=1_000)}])
    known = {"owner": "owner", "started_by": "bo", "delivery_id": "d0", "message_id": "m1", "context": "c1"}
    return {**later, **{name: value for name, value in known.items() if chance.random() < 0.3}}


WITH_PARTS = ("p_catches", "p_part_gates")
"""No time passes in their scripts: the server moves the clock of one workflow at a time, and a task's move waits for
its part's."""

FITTING: dict[str, object] = {"sizes": [1, 2], "person": {"name": "Ada", "years": 3}}


def _fitting(chance: random.Random, view: TaskView, of: str, *, parts: bool) -> Op:
    """What brings a task further."""
    found = [ask("look", of=of) if parts else passes(chance.choice([60, 2_200, 8_000]))]
    for wait in view.waiting_for:
        if wait.gate_kind is None:
            said = chance.choice(["reject", "fail", "bug"]) if wait.slot == "said" else FITTING.get(wait.slot, "yes")
            found += [send(said, wait.slot, of=of), send(said, wait.gate, of=of)]
        else:
            by = chance.choice(["ada", "bo", "owner"])
            found += [decide(wait.slot, by=by, of=of), decide(wait.gate, by=by, yes=chance.random() < 0.8, of=of)]
            found += [together(*((one.slot, True) for one in view.waiting_for), of=of)]
    for one in view.unresolved:
        found += [resolve(retry=True, of=of), resolve(outcome="by hand", invocation_id=one.invocation_id, of=of)]
    if view.note:
        found += [release(of=of)]
    if view.lifecycle is TaskState.FAILED:
        found += [recover(of=of), mended(), decide(None, of=of)]
    return chance.choice([*found[1:], *found])


def _sent(chance: random.Random, of: str) -> Op:
    said: list[Any] = [
        [True, 2],
        ["1"],
        [1.0],
        "1,2",
        {"name": "Ada", "years": "3"},
        {"name": "Ada", "years": True},
        "x",
        "",
    ]
    slot = chance.choice(["sizes", "person", "more", "first", "last", "one", "nothing", "", None, None])
    options: dict[str, Any] = {}
    if chance.random() < 0.3:
        options["delivery_id"] = chance.choice(["d0", "d1", "d2", ""])
    if chance.random() < 0.3:
        options["early"] = chance.choice([True, "interrupt"])
    return send(chance.choice(said), slot, of=of, **options)


def _decided(chance: random.Random, of: str) -> Op:
    gate = chance.choice(["one", "two", "three", None, ""])
    return chance.choice(
        [
            decide(gate, by=chance.choice(["ada", "bo", "owner", "eve", ""]), of=of),
            decide(gate, vouched_by=None, of=of),
            decide(gate, yes=False, comment="no", of=of),
            decide(gate, changes={chance.choice(["amount", "to", "more"]): 5}, of=of),
            decide(gate, digest=chance.choice(["0" * 32, ""]), of=of),
            decide_as_shown("one"),
            together(of=of),
            together(("one", False), ("two", True), of=of),
            together(("one", True), ("one", True), of=of),
            together(("one", True), ("three", True), of=of),
        ]
    )


def _ends(chance: random.Random, of: str) -> Op:
    return chance.choice(
        [
            cancel(of=of),
            cancel("not needed", of=of),
            recover(of=of),
            recover(of=of),
            resolve(retry=True, outcome="x", of=of),
            resolve(retry=True, invocation_id=chance.choice(["nothing", ""]), of=of),
        ]
    )


def _forked(chance: random.Random, of: str) -> Op:
    return chance.choice(
        [
            fork(chance.randint(-1, 9), of=of),
            fork(chance.randint(1, 5), of=of, live=True),
            fork(1, of=of, into=chance.choice(["TASK", "TASK-branch", "!"])),
        ]
    )


def _looks(chance: random.Random, of: str) -> Op:
    numbered = [ask("at", chance.randint(-1, 9), of=of), ask("explain", "draft", of=of), ask("journal", after=2, of=of)]
    return chance.choice([*numbered, *(ask(name, of=of) for name in ("look", "record", "journal", "past"))])


def _time(chance: random.Random, of: str) -> Op:
    return passes(chance.choice([1, 60, 900, 1_900, 2_200, 4_000, 8_000, 90_000]))
