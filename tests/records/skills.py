"""The skills that journals are recorded of and that are not shipped: each shows a feature, or breaks a rule.

They never change. Whatever else is to be recorded gets a skill of its own.
"""

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from refold import (
    ALL,
    Artifact,
    ChatResult,
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Contract,
    Ctx,
    DecisionMade,
    ErrorRecord,
    Event,
    GatePolicy,
    Invariant,
    LlmResult,
    Move,
    Reply,
    RetryPolicy,
    SkillResult,
    StatePatch,
    Step,
    TimerFired,
    ToolCall,
    ToolResult,
    ToolReturn,
    Transition,
    UserMessage,
    flow_skill,
    step,
    table,
    tool,
)
from refold.agent import AfterModelCall, Agent, Block, Budget, Cache, Concurrent, Guardrail, RateLimit, Window
from workflows.hello import Hello


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
    # The answer begins the next round.
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


@flow_skill(id="gated_reducer", retry=PATIENT)
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


# --- compensation, and what goes on for what failed


@tool(effect="idempotent")
def release() -> None: ...


@tool(effect="compensate", undo=release)
def reserve(seat: int) -> None: ...


@tool(effect="idempotent")
def refund(cents: int, result: JsonValue) -> None: ...


@tool(effect="compensate", undo=refund)
def pay(cents: int, currency: str = "EUR") -> dict[str, str]:
    return {}


@flow_skill(id="books")
class Books:
    """Reserves and pays, both to be undone, and then writes a mail."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(reserve, seat=7)
        paid = await ctx.tool(pay, cents=50, queue="money", key="order-1")
        mailed = await ctx.tool("mail", {"paid": paid})
        return ctx.complete(f"booked, {mailed}")


@flow_skill(id="books_gated")
class BooksGated:
    """Pays, and lets two people decide before a mail is written."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(pay, cents=50)
        policy = GatePolicy(approvers=("Ann", "Bob"), needed=2)
        await ctx.approve("sure", "Sure?", show={"cents": 50}, policy=policy)
        mailed = await ctx.tool("mail")
        return ctx.complete(f"{paid} {mailed}")


class Left(BaseModel):
    """What a hurried booking still waits for."""

    charge: bool = True
    sure: bool = True


@flow_skill(id="hurries")
class Hurries:
    """Reserves; then charges and writes a mail at once, and asks as soon as the mail is out."""

    @staticmethod
    def initial() -> Left:
        return Left()

    def on_event(self, state: Left, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage():
                return Transition.to(state).cmd(Cmd.tool("reserve", reserve, seat=7))
            case ToolResult(id="reserve"):
                return Transition.to(state).cmd(Cmd.tool("pay", pay, cents=50)).cmd(Cmd.tool("mail", "mail"))
            case ToolResult(id="mail"):
                return Transition.await_approval("sure", "Sure?", state, policy=GatePolicy(reminder_s=None))
            case ToolResult(id="pay"):
                state = Left(charge=False, sure=state.sure)
            case DecisionMade():
                state = Left(charge=state.charge, sure=False)
            case _:
                return Transition.ignore(state)
        return Transition.to(state) if state.charge or state.sure else Transition.complete(state).message("booked")


@flow_skill(id="three")
class Three:
    """One call, then two at once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        a = await ctx.tool("a")
        b, c = await ctx.gather(ctx.tool("b"), ctx.tool("c"))
        return ctx.complete(f"{a} {b} {c}")


@flow_skill(id="buggy", version=1)
class Buggy:
    """A bug: it cannot count with the result of its tool."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        a = await ctx.tool("a")
        if a == 1:
            raise ZeroDivisionError("integer division or modulo by zero")  # Python 3.14 says it otherwise
        b = await ctx.tool("b", a=1 // (a - 1))
        return ctx.complete(f"{a} {b}")


@flow_skill(id="buggy", version=1)
class Fixed:
    """The same without the bug."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        a = await ctx.tool("a")
        b = await ctx.tool("b", a=a)
        return ctx.complete(f"{a} {b}")


@flow_skill(id="buys")
class Buys:
    """Effects, a model, a question and a part: something to branch off from at every entry."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(pay, cents=50, key="order-1")
        a, b = await ctx.gather(ctx.tool("a"), ctx.llm("b", "Which?"))
        size = await ctx.ask("size", "Which size?")
        await ctx.skill("parcel", "sends", size.text)
        return ctx.complete(f"{a} {b} {size.text}")


# --- dependencies


BLOCKS = RetryPolicy(max_retries=2, on_exhausted="block")


@flow_skill(id="pays")
class Pays:
    """Two dependencies at once, each of which may be down; retries are counted for each."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        charged, mailed = await ctx.gather(ctx.tool("charge", retry=BLOCKS), ctx.tool("mail", retry=BLOCKS))
        verdict = await ctx.llm("judge", expect=Item, retry=RetryPolicy(max_retries=1, cap=3, jitter=0.25))
        return ctx.complete(f"{charged} {mailed} {verdict.name}")


# --- gates, questions, parts


@flow_skill(id="edits")
class Edits:
    """A gate of two people who may change what it shows."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        decision = await ctx.approve(
            "pay",
            "Pay?",
            show={"to": "A1", "amount": 50},
            policy=GatePolicy(approvers=("Ann", "Bob"), needed=2, second_person=True),
            editable=["amount", "note"],
        )
        return ctx.complete(f"{decision.approver}: {decision.shown}")


@flow_skill(id="signs_in")
class SignsIn:
    """A gate for anybody that stands for a sign-in, has no end, and whose denial the skill is told of."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(sign_in=True, timeout_s=None, reminder_s=None, on_denied="continue", allow_unsigned=True)
        decision = await ctx.approve("sign in", "Please sign in.", policy=policy)
        return ctx.complete(f"{decision.decision}: {decision.comment}")


class Age(BaseModel):
    years: int


@flow_skill(id="interview")
class Interview:
    """Two questions, whose answers may be there before."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("think")
        name = await ctx.ask("name", "Who are you?")
        age = await ctx.ask("age", "How old?", expect=Age)
        return ctx.complete(f"{name.text}, {age.years}")


@flow_skill(id="whole")
class Whole:
    """Two parts at once, an activity and a workflow that were there before."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        one, two, product, letter = await ctx.gather(
            ctx.skill("one", "interview", content),
            ctx.skill("two", "signs_in", {"data": [1, 2.5, None, "ä"]}),
            ctx.activity("product", "multiply", 6, 7, timeout_s=30),
            ctx.workflow("letter", "Letter", "Ada", queue="post"),
        )
        return ctx.complete(f"{one.text} {two.text} {product} {letter}", list(one.artifacts))


@flow_skill(id="side_by_side")
class SideBySide:
    """Coroutines at once, at most two calls out; one asks, one fails."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.sleep(1)
        found = await ctx.parallel(
            self.two(ctx, "a"), self.two(ctx, "b"), self.gated(ctx, "c"), self.careful(ctx, "d"), limit=2
        )
        return ctx.complete(" | ".join(found))

    async def two(self, ctx: Ctx, name: str) -> str:
        first = await ctx.tool(name)
        second, third = await ctx.gather(ctx.tool(f"{name}-then", {"first": first}), ctx.llm("more", name))
        return f"{name}: {first}, {second}, {third}"

    async def gated(self, ctx: Ctx, name: str) -> str:
        decision = await ctx.approve(f"may {name}", "May I?", policy=GatePolicy(on_denied="continue"))
        return str(await ctx.tool(name)) if decision.approved else f"no {name}"

    async def careful(self, ctx: Ctx, name: str) -> str:
        try:
            return str(await ctx.tool(name))
        except CommandError as error:
            return f"no {name}: {error.failure.message}"


# --- conversations


@tool(effect="read_only")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


@flow_skill(id="talks")
class Talks:
    """A model with a tool, in two threads; the second answers with data, and forgets how it began."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        say: list[Any] = [content]
        while True:
            heard = len(ctx.thread())
            said = await ctx.chat("model", say, instructions="Help. " * 30, tools=[weather])
            if not said.tool_calls:
                return ctx.goto("judge", text=said.text, heard=heard)
            say = [
                ToolReturn(id=call.id, name=call.name, value=await ctx.tool(call.name, call.args))
                for call in said.tool_calls
            ]

    @step
    async def judge(self, ctx: Ctx, text: str, heard: int) -> Transition:
        judged = await ctx.chat("judge", text, thread="judge", expect=Age, settings={"temperature": 0})
        again = await ctx.chat("again", "And why?", thread="judge", since=2, retry=RetryPolicy(max_retries=1))
        return ctx.await_input("next", f"{text} {judged.value} {again.text} ({heard} turns before)", text=text)

    @step(resume_from="judge")
    async def more(self, ctx: Ctx, content: Content, text: str) -> Transition:
        if content.text == "bye":
            return ctx.complete(f"{len(ctx.thread())} and {len(ctx.thread('judge'))} turns")
        return ctx.goto("begin", content=content)


@flow_skill(id="talks_as_reducer")
class TalksAsReducer:
    """A model with a tool, as a reducer."""

    @staticmethod
    def initial() -> list[ToolCall]:
        return []

    def on_event(self, state: list[ToolCall], event: Any, ctx: Ctx) -> Transition:
        match event:
            case UserMessage(content=content):
                return self.ask(content)
            case ChatResult(reply=Reply(tool_calls=[call, *_])):
                return Transition.to([call]).cmd(Cmd.tool(call.name, call.name, call.args))
            case ChatResult(reply=said):
                return Transition.complete().message(f"{said.text} ({len(ctx.thread()) - 2} turns before)")
            case _:
                return self.ask(ToolReturn(id=state[0].id, name=state[0].name, value=event.value))

    def ask(self, say: Content | ToolReturn) -> Transition:
        return Transition.to([]).cmd(Cmd.chat("model", [say], instructions="Help.", tools=[weather]))


# --- contracts


class Plan(BaseModel):
    goal: str


class Writing(BaseModel):
    """What the steps share."""

    model_config = ConfigDict(frozen=True)

    phase: str = "new"
    topic: str
    rounds: int = Field(default=0, ge=0)
    plan: Plan | None = None
    text: str = ""
    trouble: ErrorRecord | None = None


def _written(content: Content, ctx: Ctx) -> Writing:
    if content.text == "nonsense":
        raise ValueError("nobody can work on nonsense")
    return Writing(topic=content.text)


WRITING = Contract(
    state=Writing,
    begins=_written,
    owned=["topic", "rounds"],
    lifecycle="phase",
    moves=[
        Move("new", "planning"),
        Move("planning", "writing"),
        Move("writing", "planning", then=lambda work: StatePatch(rounds=work.rounds + 1, plan=None)),
        Move("writing", "done"),
        Move("planning", "failed"),
        Move("writing", "failed"),
    ],
    invariants=[
        Invariant("topic", "there is a topic", lambda work: bool(work.topic)),
        Invariant("plan", "who writes has a plan", lambda work: work.plan is not None, at="writing"),
        Invariant("text", "nothing short is done", lambda work: len(work.text) > 3, at="done"),
        Invariant("rounds", "rounds never go back", keeps=lambda before, work: work.rounds >= before.rounds),
    ],
)


@flow_skill(id="writes", contract=WRITING)
class Writes:
    """Plans and writes under a contract; what the model says breaks it or keeps it."""

    @step(start=True, enters="new")
    def start(self) -> StatePatch:
        return StatePatch()

    @step(enters="planning", reads=["topic", "rounds"], writes=["plan"])
    async def plan(self, ctx: Ctx, state: Writing) -> StatePatch:
        goal = await ctx.llm("plan", f"Plan, round {state.rounds}.", state.topic)
        return StatePatch(plan=Plan(goal=goal)) if goal else StatePatch()

    @step(enters="writing", reads=["plan", "rounds"], writes=["text"], requires=["plan"])
    async def write(self, ctx: Ctx, state: Writing) -> Any:
        text = await ctx.llm("write", "Write.", state.plan.goal if state.plan else "")
        match text:
            case "overstep":
                return ctx.complete("Done.").patch(text=text, rounds=7)
            case "peek":
                return StatePatch(text=str(getattr(state, "topic")))  # noqa: B009 - so that no check sees it
            case "again":
                return ctx.goto("plan")
            case "bug":
                raise KeyError("bug")
            case _:
                return ctx.complete("Done.").patch(text=text)

    @step(on_error=True, reads=ALL, writes=["trouble"])
    def handle(self, error: ErrorRecord) -> StatePatch:
        return StatePatch(trouble=error)


# --- an older version's state


class Numbers(BaseModel):
    seen: list[int] = []


def _renumber(version: int, state: Any) -> Any:
    return {**state, "seen": [*state.get("seen", []), version]}


def _versioned(version: int) -> Any:
    @flow_skill(id="versioned", version=version, upgrade=_renumber)
    class Versioned:
        """Its state has a new shape with every version."""

        @staticmethod
        def initial() -> Numbers:
            return Numbers()

        def on_event(self, state: Numbers, event: Event, ctx: Ctx) -> Transition:
            if isinstance(event, LlmResult):
                return Transition.complete().message(str(state.seen))
            return Transition.to(state).cmd(Cmd.llm("a"))

    return Versioned


VERSION_1, VERSION_3 = _versioned(1), _versioned(3)


# --- agents


@tool(effect="read_only")
def price(item: str) -> int:
    """What an item costs, in cents."""
    return 100 * len(item)


@tool(effect="at_most_once")
def buy(item: str, count: int = 1) -> str:
    """Buy an item."""
    return f"{count} {item}"


class Bill(BaseModel):
    total: int
    items: list[str] = []


def _no_cards(text: str) -> Block | None:
    return Block("a card's number") if "4111" in text else None


def _counted(event: AfterModelCall) -> None:
    if event.reply is not None and event.reply.text == "hm":
        event.retry = True


SHOP = Agent(
    "shop",
    instructions="Sell tea.",
    tools=[price, buy, weather, Interview],
    gates={"buy": GatePolicy(approvers=("Ann",), timeout_s=60, reminder_s=None, on_denied="continue")},
    keys={"buy": "buy:{item}"},
    middleware=[
        Budget(model_calls=4, when_spent="ask"),
        RateLimit(0.5, steps=("tool",)),
        Cache(tools=["price"]),
        Window(4),
        Guardrail(_no_cards, name="cards", instead="[hidden]"),
    ],
    plugins=[_counted],
    orchestrator=Concurrent(2),
    turns=2,
    max_cycles=5,
    fatal=["weather"],
)

BILLS = Agent("bills", instructions="Write bills.", tools=[price], output=Bill, turns=None)
