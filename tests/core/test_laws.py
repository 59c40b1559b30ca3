"""The laws hold for the skills that are shipped, and for skills made to be hard."""

from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pydantic import BaseModel, Field, JsonValue

from refold import (
    Artifact,
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Ctx,
    DecisionMade,
    GatePolicy,
    LlmResult,
    RetryPolicy,
    SkillResult,
    Step,
    TimerFired,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    step,
    table,
    tool,
)
from refold.core.events import BackoffOver, CancelRequested, Event
from refold.core.retry_policy import Failure, FailureKind
from refold.testing import LawBroken, check_laws
from refold.testing.laws import check_history, check_lineage
from refold.testing.strategies import Happening, Life, lineages
from tests.sweeps import THOROUGH
from workflows.hello import Hello
from workflows.research_loop import ResearchLoop
from workflows.research_loop_steps import ResearchLoopSteps
from workflows.research_loop_table import RESEARCH_LOOP_TABLE


class Item(BaseModel):
    name: str
    price: int = Field(ge=0, le=1000)
    due: date | None = None
    parts: list["Item"] = []


class Order(BaseModel):
    items: list[Item] = Field(max_length=2)
    kind: Literal["gift", "own"] = "own"


@tool(effect="read_only")
def stock(item: str) -> int:
    return len(item)


@tool(effect="at_most_once")
def charge(cents: int) -> dict[str, int]:
    return {"paid": cents}


@flow_skill(id="gathers", retry=RetryPolicy(max_retries=1, jitter=0.5))
class Gathers:
    """Tools, a model, a sleep and a child at once; a failure is caught."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content, seen: list[str]) -> Transition:
        ctx.say("One moment.")
        try:
            count, item, _, child = await ctx.gather(
                ctx.tool(stock, item=content.text),
                ctx.llm("item", expect=Item, retry=RetryPolicy(max_retries=2, base=5)),
                ctx.sleep(30),
                ctx.skill("hello", Hello, "Ada"),
            )
        except CommandError as error:
            return ctx.goto("again", seen=[*seen, error.id])
        ctx.status(f"{count} in stock")
        paid = await ctx.tool(charge, cents=item.price)
        ctx.hand_over(Artifact.from_data("paid", {**paid, "at": ctx.now.isoformat()}))
        return ctx.complete(child.text)

    @step
    async def again(self, ctx: Ctx, seen: list[str]) -> Transition:
        if len(seen) > 2:
            return ctx.fail(f"gave up after {', '.join(seen)}")
        return ctx.goto("begin", content=Content.from_text("again"), seen=seen)


@flow_skill(id="asks", input=Order)
class Asks:
    """Several questions at once, in the middle of a step and at its end, with the same slots used again."""

    @step(start=True)
    async def begin(self, ctx: Ctx, order: Order) -> Transition:
        size, colour = await ctx.gather(ctx.ask("size", "Size?", expect=Item), ctx.ask("colour", "Colour?"))
        return ctx.goto("more", size=size, colours=[colour.text])

    @step
    async def more(self, ctx: Ctx, size: Item, colours: list[str]) -> Transition:
        if len(colours) > 3:
            return ctx.complete(f"{size.name}: {', '.join(colours)}")
        return ctx.await_input("colour", "Another?", size=size, colours=colours)

    @step(resume_from="more")
    async def answered(self, ctx: Ctx, content: Content, size: Item, colours: list[str]) -> Transition:
        _, third = await ctx.gather(ctx.sleep(5), ctx.ask("colour", "A third?"))
        return ctx.goto("more", size=size, colours=[*colours, content.text, third.text])


class Work(BaseModel):
    rounds: int = 0
    notes: list[JsonValue] = []


def _work(work: Work) -> Transition:
    weigh = Cmd.tool("weight", stock, item="x", retry=RetryPolicy(max_retries=1))
    return Transition.goto("weighed", work=work).cmd(weigh).cmd(Cmd.llm("item", expect=Item)).message("Weighing.")


def _begin(content: Content) -> Transition:
    return _work(Work(notes=[content.data]))


def _weighed(ctx: Ctx, work: Work, weight: int, item: Item) -> Transition:
    work.rounds += 1
    work.notes.append({"weight": weight, "item": item.name, "now": ctx.now.isoformat()})
    if work.rounds == 3:
        return ctx.complete(artifacts=[Artifact.from_data("notes", {"notes": work.notes})])
    return ctx.await_input("next", "And now?", work=work)


def _answered(ctx: Ctx, content: Content, work: Work) -> Transition:
    return _work(work)


WEIGHS = table(
    "weighs",
    Step("begin", _begin).start(),
    Step("weighed", _weighed),
    Step("answered", _answered).resume_from("weighed"),
)


@flow_skill(id="patched")
class Patched:
    """Asks for patches in every place where one may stand."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        first = await ctx.llm("first", "New." if ctx.patched("prompt") else "Old.")
        if ctx.patched("twice"):
            first += await ctx.llm("second", first)
        await ctx.sleep(3600)
        return ctx.complete(f"{first} {ctx.patched('late')} {ctx.now.isoformat()} {len(ctx.messages)}")


class Counting(BaseModel):
    kind: Literal["counting"] = "counting"
    left: dict[str, int] = {}
    log: list[JsonValue] = []


class Asking(BaseModel):
    kind: Literal["asking"] = "asking"
    log: list[JsonValue] = []
    answers: dict[str, str] = {}


class Resting(BaseModel):
    kind: Literal["resting"] = "resting"
    log: list[JsonValue] = []


@flow_skill(id="juggles", retry=RetryPolicy(max_retries=2))
class Juggles:
    """A reducer with many states, several commands and questions in flight, and commands issued while others are."""

    @staticmethod
    def initial() -> Counting:
        return Counting()

    def on_event(self, state: Counting | Asking | Resting, event: Event, ctx: Ctx) -> Transition:
        log: list[JsonValue] = [*state.log, [event.kind, ctx.now.isoformat()]]
        match state, event:
            case Counting(left={}), UserMessage():
                next = Counting(left={"a": 1, "b": 1, "nap": 1}, log=log)
                return Transition.to(next).cmd(Cmd.tool("a", "a")).cmd(Cmd.llm("b")).cmd(Cmd.sleep("nap", 10))
            case Counting(left=left), ToolResult() | LlmResult() | TimerFired() | CommandFailed():
                left = {id: one for id, one in left.items() if id != event.id}
                if left:
                    return Transition.to(Counting(left=left, log=log)).message(f"{event.id} is here")
                asking = Transition.to(Asking(log=log))
                return asking.cmd(Cmd.ask_user("x", "X?")).cmd(Cmd.ask_user("y", "Y?")).cmd(Cmd.tool("late", "late"))
            case Asking(answers=answers), UserMessage(slot=str(slot), content=content):
                answers = {**answers, slot: content.text}
                if len(answers) < 2:
                    return Transition.to(Asking(log=log, answers=answers))
                return (
                    Transition.to(Resting(log=log)).cmd(Cmd.sleep("rest", 60)).cmd(Cmd.skill("hello", "hello", "Ada"))
                )
            case Resting(), TimerFired(id="rest"):
                return Transition.to(Counting(log=log))
            case Resting(), SkillResult(outcome=outcome):
                artifact = Artifact.from_data("log", {"log": log, "text": outcome.text})
                return Transition.complete(Resting(log=log)).artifact(artifact)
            case Counting(), SkillResult():
                return Transition.fail("too late")
            case _, CommandFailed(id="late"):
                return Transition.to(state.model_copy(update={"log": log}))
            case _:
                return Transition.ignore(state)


class Heap(BaseModel):
    """State that says as little of its shape as it can."""

    things: dict[str, Any] = {"list": [], "dict": {}}
    rounds: int = 0


@flow_skill(id="careless")
class Careless:
    """A reducer that writes into everything it is given."""

    @staticmethod
    def initial() -> Heap:
        return Heap()

    def on_event(self, state: Heap, event: Event, ctx: Ctx) -> Transition:
        state.things["list"].append(event.kind)
        state.things["dict"].setdefault("kinds", []).append(event.kind)
        state.rounds += 1
        for message in ctx.messages:
            _scribble(message.content.data)
        if isinstance(event, UserMessage):
            _scribble(event.content.data)
        if isinstance(event, ToolResult):
            _scribble(event.value)
        if state.rounds > 3:
            return Transition.complete(state).artifact(Artifact.from_data("things", state.things))
        args = {"things": state.things}
        transition = Transition.to(state).cmd(Cmd.tool("t", "t", args))
        _scribble(args)
        return transition


@flow_skill(id="careless_steps")
class CarelessSteps:
    """Steps that write into everything they are given, before and after each await."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content, heap: dict[str, Any]) -> Transition:
        _scribble(content.data)
        heap.setdefault("rounds", []).append(1)
        return ctx.goto("work", heap=heap, given=[content.data])

    @step
    async def work(self, ctx: Ctx, heap: dict[str, Any], given: list[Any]) -> Transition:
        heap["rounds"].append(2)
        _scribble(given[0])
        first, second = await ctx.gather(ctx.tool("a"), ctx.tool("b", heap=heap, given=given))
        heap["rounds"].append(first)
        for value in (first, second, given[0], *(message.content.data for message in ctx.messages)):
            _scribble(value)
        ctx.hand_over(Artifact.from_data("given", {"first": first, "second": second}))
        third = await ctx.tool("c", first=first, second=second, heap=heap)
        _scribble(third)
        _scribble(first)
        reply = await ctx.ask("more", "More?")
        _scribble(reply.data)
        await ctx.tool("d", third=third, first=first, reply=reply.data)
        if len(heap["rounds"]) > 6:
            return ctx.complete(artifacts=[Artifact.from_data("heap", heap)])
        return ctx.goto("work", heap=heap, given=[third])


def _scribble(value: Any) -> None:
    if isinstance(value, dict):
        value["scribble"] = [value.get("scribble")]
        for inner in list(value.values()):
            _scribble(inner) if isinstance(inner, dict) else None
    elif isinstance(value, list):
        value.append(len(value))
        for inner in value:
            _scribble(inner) if isinstance(inner, list | dict) else None


@flow_skill(id="breaks", input=dict[str, int])
class Breaks:
    """Breaks each rule of its style, by what a tool says."""

    @step(start=True)
    async def begin(self, ctx: Ctx, order: dict[str, int]) -> Transition:
        return ctx.goto("work")

    @step
    async def work(self, ctx: Ctx) -> Any:
        way = await ctx.tool("way")
        match way:
            case 0:
                return "no transition"
            case 1:
                return ctx.goto(str(way))
            case 2:
                return ctx.goto("work", **dict.fromkeys(["surplus"], 1))
            case 3:
                return ctx.goto("loop")
            case 4:
                forgotten = ctx.tool("forgotten")
                return ctx.complete(f"{forgotten.command.id}")
            case 5:
                return ctx.reject("too late")
            case 6:
                await ctx.gather(ctx.ask("a", "?"), ctx.tool("x", id="a"))
            case 7:
                return Transition().cmd(Cmd.ask_user("nobody", "?"))
            case 8:
                return ctx.complete().message("said").fail("both")
            case 9:
                return Transition.to({"a": object()})
            case 10:
                return await ctx.sleep(1e300)
            case 11:
                raise KeyError("bug")
            case 12:
                return ctx.goto("work").cmd(Cmd.tool("way", "way"))
            case 13:
                raise CommandError("x", "y", None)  # type: ignore[arg-type]  # as wrong as can be
            case 14:
                raise SystemError("odd")
            case 15:
                return Transition()
            case _:
                pass
        await ctx.tool("way2")
        return ctx.goto("work")

    @step
    async def loop(self, ctx: Ctx) -> Transition:
        return ctx.goto("loop")


@tool(effect="idempotent")
def give_back(cents: int, result: JsonValue) -> None: ...


@tool(effect="compensate", undo=give_back)
def take(cents: int) -> JsonValue:
    return cents


PATIENT = RetryPolicy(max_retries=1, on_exhausted="block")
STUBBORN = PATIENT.model_copy(update={"on_unknown": "repeat"})
CANDID = PATIENT.model_copy(update={"on_unknown": "fail"})
TWO = GatePolicy(approvers=("Ann", "Bob"), needed=2, timeout_s=60, reminder_s=30, grace_s=20)
ANYBODY = GatePolicy(on_denied="continue", timeout_s=None, reminder_s=5)


@flow_skill(id="gated", retry=PATIENT)
class Gated:
    """Gates in the middle and at the end of steps, effects that are undone, dependencies that are waited for."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content, rounds: int = 0) -> Transition:
        await ctx.tool(take, cents=rounds)
        _, decision, text = await ctx.gather(
            ctx.tool(take, id="more", cents=5),
            ctx.approve("both", "Both?", show={"rounds": rounds}, policy=TWO),
            ctx.ask("why", "Why?"),
        )
        await ctx.llm("write", text.text + decision.approver)
        return ctx.goto("last", rounds=rounds + 1)

    @step
    async def last(self, ctx: Ctx, rounds: int) -> Transition:
        return ctx.await_approval("last", "Sure?", show=rounds, policy=ANYBODY, rounds=rounds)

    @step(resume_from="last")
    async def decided(self, ctx: Ctx, decision: DecisionMade, rounds: int) -> Transition:
        if decision.approved and rounds > 1:
            return ctx.complete(decision.comment)
        return ctx.goto("begin", content=Content.from_text("again"), rounds=rounds)


class Asked(BaseModel):
    kind: Literal["asked"] = "asked"
    left: int = 3
    log: list[str] = []


@flow_skill(id="gated_reducer", retry=STUBBORN)
class GatedReducer:
    """A gate, a question and effects that are undone, at the same time."""

    @staticmethod
    def initial() -> Asked:
        return Asked()

    def on_event(self, state: Asked, event: Event, ctx: Ctx) -> Transition:
        log = [*state.log, event.kind]
        match event:
            case UserMessage(slot=None):
                gate = Cmd.ask_approval("gate", "Sure?", show=1, policy=TWO)
                asking = Transition.to(state).cmd(gate).cmd(Cmd.ask_user("why", "Why?"))
                return asking.cmd(Cmd.tool("a", take, cents=1)).cmd(Cmd.tool("b", take, cents=2))
            case CommandFailed(id="a"):
                return Transition.ignore(state)
            case _ if state.left == 0:
                return Transition.complete(state)
            case _:
                again = Transition.to(Asked(left=state.left - 1, log=log))
                return again.cmd(Cmd.tool(f"c{state.left}", take, cents=3))


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
    "gates, undoing and blocking, in a reducer": (GatedReducer, {"tools": [take], "max_events": 40}),
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
EXAMPLES = [pytest.param(15, id="some"), pytest.param(150 if THOROUGH else 100, id="many", marks=pytest.mark.sweep)]


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(("skill", "more"), SKILLS.values(), ids=SKILLS)
def test_the_laws_hold(skill: Any, more: dict[str, Any], examples: int) -> None:
    """
    For what is shipped, and for skills made to be hard.
    """
    check_laws(skill, max_examples=examples, **more)


@pytest.mark.parametrize(
    "examples",
    [pytest.param(20, id="some"), pytest.param(600 if THOROUGH else 150, id="many", marks=pytest.mark.sweep)],
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
