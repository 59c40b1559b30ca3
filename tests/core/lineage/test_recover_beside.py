"""Recovery where one of several coroutines failed, and others went on beside it: in its place, or with questions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from refold import Cmd, Content, Ctx, Status, Step, TaskState, Transition, flow_skill, table
from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import Live
from refold.core.events import CommandFailed, Event, TimerFired, ToolResult, UserMessage
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, Perform, wanted
from refold.core.gates import DecisionMade
from refold.core.retry_policy import Failure, FailureKind
from refold.lineage.recover import recover
from refold.testing.strategies import first_of
from tests.core.byhand import ByHand, busy
from tests.sweeps import examples

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOT_FOUND = Failure(kind=FailureKind.PERMANENT, type="http_404", message="no such customer")


@dataclass(frozen=True)
class Side:
    """Coroutines side by side, at most so many calls at once; each makes its calls in turn, or is `Side` itself."""

    runs: tuple[tuple[str | Side, ...], ...]
    limit: int | None = None

    async def run(self, ctx: Ctx) -> None:
        await ctx.parallel(*(self._one(ctx, run) for run in self.runs), limit=self.limit)

    async def _one(self, ctx: Ctx, run: tuple[str | Side, ...]) -> None:
        for call in run:
            match call:
                case Side():
                    await call.run(ctx)
                case "gate":
                    await ctx.approve("gate", "May it?")
                case "both":
                    await ctx.gather(ctx.tool("pay"), ctx.tool("mail"))
                case "race":
                    await ctx.first(ctx.sleep(5), ctx.sleep(9))
                case str():
                    await ctx.tool(call)


def skill_with(side: Side) -> Any:
    async def begin(ctx: Ctx, content: Content) -> Transition:
        await side.run(ctx)
        return ctx.complete("ok")

    return skill_of(table("beside", Step("begin", begin).start()))


@dataclass
class Task:
    """A task by hand, whose coroutine is driven again for each event.

    Attributes:
        performed: How often each call was performed, by the place where it was asked for.
    """

    skill: Any
    base: Snapshot
    cut: bool
    now: Snapshot = field(init=False)
    entries: list[Entry] = field(default_factory=list)
    performed: Counter[str] = field(default_factory=Counter)
    live: Live = field(default_factory=Live)

    def __post_init__(self) -> None:
        self.now = self.base

    def take(self, event: Event) -> None:
        live = Live() if self.cut else self.live
        self.now, entry = advance(self.skill, self.now, event, max([AT, self.now.at, *self.due(event)]), live=live)
        assert not entry.refused
        self.entries.append(entry)
        if self.cut:
            self.now = Snapshot.model_validate_json(self.now.model_dump_json())

    def due(self, event: Event) -> list[datetime]:
        return [one.due_at for one in wanted(self.now).values() if isinstance(one, Alarm) and one.event == event]

    def choices(self) -> list[Perform | Event]:
        """What may come next: outcomes of calls, ends of timers, grants."""
        found: list[Perform | Event] = [one for one in wanted(self.now).values() if isinstance(one, Perform)]
        alarms = [one.event for one in wanted(self.now).values() if isinstance(one, Alarm)]
        found += [one for one in alarms if isinstance(one, TimerFired)]
        for wait in self.now.waits:
            digest = getattr(wait.ask, "digest", "")
            found.append(DecisionMade(gate=wait.gate, digest=digest, decision="approved", approver="Ann"))
        return found

    def come(self, chosen: Perform | Event, *, fails: bool) -> None:
        if not isinstance(chosen, Perform):
            self.take(chosen)
            return
        ids = {"id": chosen.command.id, "invocation_id": chosen.invocation_id}
        if fails:
            self.take(CommandFailed(**ids, failure=NOT_FOUND))
        else:
            self.performed[chosen.invocation_id.rpartition("/")[2]] += 1
            self.take(ToolResult(**ids, value=1))


_calls: st.SearchStrategy[str] = st.sampled_from(["pay", "pay", "mail", "gate", "both", "race"])
_limits = st.sampled_from([None, 1, 1, 2])


def _sides(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Side]:
    runs = st.lists(st.lists(inner, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3).map(tuple)
    return st.builds(Side, runs, _limits)


sides = _sides(_calls) | _sides(_calls | _sides(_calls))


def counted(side: Side) -> int:
    """How many tools are called."""
    calls = [call for run in side.runs for call in run]
    return sum(
        counted(one) if isinstance(one, Side) else {"gate": 0, "race": 0, "both": 2}.get(one, 1) for one in calls
    )


def played(task: Task, data: st.DataObject, failing: int) -> None:
    """Let a task come to its end; so many calls fail at the most."""
    while not task.now.ended:
        choices = task.choices()
        chosen = choices[data.draw(st.integers(0, len(choices) - 1))]
        fails = isinstance(chosen, Perform) and failing > 0 and data.draw(st.integers(0, 3)) == 0
        failing -= fails
        task.come(chosen, fails=fails)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_a_task_goes_on_from_what_failed_in_it(data: st.DataObject) -> None:
    """
    Whatever went on beside a call after its failure: recovered, the task makes that call again, and no other twice.
    """
    side, cut = data.draw(sides), data.draw(st.booleans())
    skill = skill_with(side)
    task = Task(skill, first_of(skill), cut)
    task.take(UserMessage(content=Content.from_text("go")))
    performed: Counter[str] = Counter()
    for number in range(3):
        played(task, data, failing=0 if number == 2 else 2)
        performed += task.performed
        if task.now.status is Status.COMPLETED:
            break
        new, first = recover(skill, task.base, task.entries, f"T.r{number + 1}", task.now.at)
        task = Task(skill, new, cut)
        task.take(first)

    assert task.now.status is Status.COMPLETED
    assert (set(performed.values()) or {1}, performed.total()) == ({1}, counted(side))


class Heard(BaseModel):
    pass


@flow_skill(id="asks_for_more")
class AsksForMore:
    """A reducer that fails with one tool, and asks for more when another one has come back."""

    @staticmethod
    def initial() -> Heard:
        return Heard()

    def on_event(self, state: Heard, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage():
                asks = Transition.to(state).cmd(Cmd.tool("pay", "pay")).cmd(Cmd.tool("mail", "mail"))
                return asks.cmd(Cmd.tool("look", "look"))
            case ToolResult(id="mail"):
                return Transition.to(state).cmd(Cmd.tool("more", "more"))
            case ToolResult(id="more"):
                return Transition.complete(state)
            case _:
                return Transition.ignore(state)


@pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])
def test_what_was_held_with_the_failure_is_delivered_by_recovery(cut: bool) -> None:
    """
    The entry that ended the task then asks for what the task never sent, so its id is free.
    """
    task = ByHand(AsksForMore, cut=cut)
    task.say()
    task.fail("look", busy())
    task.fail("pay", NOT_FOUND)
    task.give("mail")
    task.ring("look")
    assert task.state is TaskState.FAILED

    new = task.recovered()

    assert sorted(new.out) == ["look", "more", "pay"]
    new.give("more")
    assert new.state is TaskState.DONE
    assert new.folded() == new.task
