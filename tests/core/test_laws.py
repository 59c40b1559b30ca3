"""The laws hold for the skills that are shipped, and for skills made to be hard."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pydantic import BaseModel

from refold import (
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Ctx,
    GatePolicy,
    RetryPolicy,
    Step,
    TimerFired,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    step,
    table,
)
from refold.core.events import BackoffOver, CancelRequested, Event
from refold.core.retry_policy import Failure, FailureKind
from refold.testing import LawBroken, check_laws
from refold.testing.laws import check_history, check_lineage
from refold.testing.strategies import Happening, Life, lineages
from tests.records.skills import (
    ANYBODY,
    PATIENT,
    WEIGHS,
    Asks,
    Breaks,
    Careless,
    CarelessSteps,
    Gated,
    GatedReducer,
    Gathers,
    Juggles,
    Patched,
    charge,
    stock,
    take,
)
from tests.sweeps import THOROUGH
from tests.sweeps import examples as some
from workflows.hello import Hello
from workflows.research_loop import ResearchLoop
from workflows.research_loop_steps import ResearchLoopSteps
from workflows.research_loop_table import RESEARCH_LOOP_TABLE

STUBBORN = PATIENT.model_copy(update={"on_unknown": "repeat"})
CANDID = PATIENT.model_copy(update={"on_unknown": "fail"})


@flow_skill(id="gated_reducer", retry=STUBBORN)
class StubbornReducer(GatedReducer):
    """`GatedReducer`, but an effect of unknown outcome is repeated."""


@flow_skill(id="side_by_side", retry=CANDID)
class SideBySide:
    """Branches side by side: tools, children, questions and gates with timeouts, in each of them."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        try:
            said = await ctx.parallel(self.looks(ctx), self.asks(ctx), self.calls(ctx))
        except CommandError as error:
            return ctx.fail(f"{error.id}: {error.failure.type}")
        return ctx.complete(" ".join(said))

    async def looks(self, ctx: Ctx) -> str:
        taken = await ctx.tool(take, cents=1)
        return f"{taken} {await ctx.tool(stock, item='x')}"

    async def asks(self, ctx: Ctx) -> str:
        try:
            answer = await ctx.ask("size", "Size?", timeout_s=60)
        except CommandError as error:
            return error.failure.type
        decision = await ctx.approve("sure", "Sure?", policy=GatePolicy(timeout_s=60, on_timeout="continue"))
        return f"{answer.text} {decision.decision}"

    async def calls(self, ctx: Ctx) -> str:
        await ctx.sleep(30)
        return (await ctx.skill("child", "child", "go")).text


@flow_skill(id="races")
class Races:
    """A question with a timeout, a gate and a timer in a race, over and over; models too; and effects to compensate."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content, rounds: int = 0) -> Transition:
        await ctx.tool(take, cents=rounds)
        calls: list[Any] = [
            ctx.ask("q", "?", timeout_s=60),
            ctx.sleep(30),
            ctx.approve("g", "?", policy=ANYBODY),
        ]
        try:
            index, _ = await ctx.first(*calls)
            await ctx.first(ctx.llm("m"), ctx.sleep(30))
        except CommandError as error:
            return ctx.fail(error.failure.type)
        if rounds == 2:
            return ctx.await_input("last", "Last?", timeout_s=10)
        return ctx.goto("begin", content=Content.from_text(str(index)), rounds=rounds + 1)

    @step(resume_from="begin")
    async def last(self, ctx: Ctx, content: Content | None) -> Transition:
        return ctx.complete("nobody" if content is None else content.text)


@flow_skill(id="catches", retry=RetryPolicy(max_retries=1))
class Catches:
    """Catches each failure of what it gathers, races and runs in parallel."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(on_denied="continue", on_timeout="continue", timeout_s=60)
        late = await self.caught(ctx.gather(ctx.ask("a", "?", timeout_s=60), ctx.approve("g", "?", policy=policy)))
        won = await self.caught(ctx.first(ctx.llm("x"), ctx.llm("y"), ctx.llm("z"), ctx.sleep(600)))
        branches = (self.caught(ctx.ask("b", "?", timeout_s=60)), self.caught(ctx.ask("c", "?", timeout_s=90)))
        both = await ctx.parallel(*branches, self.caught(ctx.gather(ctx.llm("v"), ctx.llm("w"))))
        return ctx.complete(" ".join([late, won, *both]))

    async def caught(self, asked: Any) -> str:
        try:
            await asked
        except CommandError as error:
            return error.failure.type
        return "ok"


class Nags(BaseModel):
    times: int = 0


@flow_skill(id="nags", retry=PATIENT)
class Nagging:
    """A reducer that speaks, charges and gives up while it waits for an answer: its timers reach it."""

    @staticmethod
    def initial() -> Nags:
        return Nags()

    def on_event(self, state: Nags, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage(slot=None):
                asking = Transition.await_input("colour", "Which?", state, timeout_s=300)
                return asking.cmd(Cmd.sleep("nag", 60)).cmd(Cmd.tool("early", take, cents=1))
            case TimerFired() if state.times == 3:
                return Transition.fail("nobody answers")
            case TimerFired():
                nagged = Transition.to(Nags(times=state.times + 1)).message("Still there?").cmd(Cmd.sleep("nag", 60))
                return nagged.cmd(Cmd.tool(f"t{state.times}", take, cents=2))
            case UserMessage() | CommandFailed(id="colour"):
                return Transition.complete()
            case _:
                return Transition.ignore(state)


async def _parent(ctx: Ctx, content: Content) -> Transition:
    return ctx.complete((await ctx.skill("child", "child", "go")).text)


SKILLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "branches side by side": (SideBySide, {"tools": [take, stock]}),
    "races": (Races, {"tools": [take]}),
    "timers while a task waits": (Nagging, {"tools": [take]}),
    "the smallest parent": (table("parent", Step("begin", _parent).start()), {}),
    "gates, undoing and blocking, in steps": (Gated, {"tools": [take], "max_events": 40}),
    "gates, undoing and blocking, in a reducer": (StubbornReducer, {"tools": [take], "max_events": 40}),
    "hello": (Hello, {}),
    "research loop": (ResearchLoop, {}),
    "research loop in steps": (ResearchLoopSteps, {}),
    "research loop in a table": (RESEARCH_LOOP_TABLE, {}),
    "gather": (Gathers, {"tools": [stock, charge]}),
    "several questions": (Asks, {}),
    "fed steps, and questions with commands in flight": (WEIGHS, {"values": {"weight": int}}),
    "patches": (Patched, {}),
    "a reducer of many states": (Juggles, {}),
    "a reducer that writes into what it is given": (Careless, {}),
    "steps that write into what they are given": (CarelessSteps, {}),
    "broken rules": (Breaks, {"values": {"way": Literal[tuple(range(17))]}}),
}
EXAMPLES = [
    pytest.param(some(15), id="some"),
    pytest.param(150 if THOROUGH else 100, id="many", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(("skill", "more"), SKILLS.values(), ids=SKILLS)
def test_the_laws_hold(skill: Any, more: dict[str, Any], examples: int) -> None:
    """
    For what is shipped, and for skills made to be hard.
    """
    check_laws(skill, max_examples=examples, **more)


@pytest.mark.parametrize(
    "examples",
    [pytest.param(some(20), id="some"), pytest.param(600 if THOROUGH else 150, id="many", marks=pytest.mark.sweep)],
)
def test_no_failure_is_raised_where_it_cannot_be_caught(examples: int) -> None:
    """
    No command's failure ends a skill that catches what its awaits raise, in whatever order outcomes come.
    """

    @settings(max_examples=4 * examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(lives=lineages(skill_of(Catches), max_events=30))
    def law(lives: list[Life]) -> None:
        for journal in check_lineage(Catches, lives):
            assert [entry.reason for entry in journal if entry.cause is not None] == []

    law()


def test_the_laws_hold_for_a_task_that_is_canceled_during_a_probe() -> None:
    """
    The blocked effect may have taken place: its probe is awaited, and what it found is undone.
    """
    away = CommandFailed(
        id="take", invocation_id="T/1.1", failure=Failure(kind=FailureKind.TRANSIENT, type="http_503", message="")
    )
    events: list[tuple[int, Event]] = [
        (0, UserMessage(content=Content.from_text("go"))),
        (0, away),
        (1, BackoffOver(invocation_id="T/1.1", retry=1)),
        (1, away),
        (31, BackoffOver(invocation_id="T/1.1", retry=2)),
        (31, CancelRequested(reason="enough")),
        (32, ToolResult(id="take", invocation_id="T/1.1", value=1)),
    ]
    start = datetime(2026, 1, 1, tzinfo=UTC)

    entries = check_history(SideBySide, [Happening(one, start + timedelta(seconds=at)) for at, one in events])

    assert [one.invocation_id for one in entries[-1].commands] == ["T/1.1~undo"]


# --- skills that break a law are found


NUMBERS = count()
KEPT: list[str] = []


class Counted(BaseModel):
    number: int = 0


@flow_skill(id="hidden_counter")
class HiddenCounter:
    """Remembers something of its own."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(str(next(NUMBERS)))


@flow_skill(id="hidden_list")
class HiddenList:
    """Keeps what belongs to a task in the module."""

    @staticmethod
    def initial() -> Counted:
        return Counted()

    def on_event(self, state: Counted, event: Event, ctx: Ctx) -> Transition:
        KEPT.append(event.kind)
        return Transition.to(Counted(number=len(KEPT))).cmd(Cmd.tool("t", "t"))


@flow_skill(id="asks_by_chance")
class AsksByChance:
    """Asks for something else when it is driven again."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("t", number=next(NUMBERS))
        return ctx.complete()


@pytest.mark.parametrize("skill", [HiddenCounter, HiddenList, AsksByChance])
def test_a_hidden_memory_is_found(skill: type) -> None:
    """
    What is neither in the state nor in the events shows as a difference.
    """
    with pytest.raises(LawBroken, match="law broken") as raised:
        check_laws(skill, profile=settings(max_examples=20, phases=[Phase.generate]))

    assert raised.value.history
