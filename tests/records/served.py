"""The skills that histories are recorded of and that are not shipped. They never change; see `skills`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from refold import (
    Artifact,
    Cmd,
    CommandError,
    Content,
    Contract,
    Ctx,
    DecisionMade,
    Event,
    GatePolicy,
    RetryPolicy,
    ToolReturn,
    Transition,
    UserMessage,
    flow_skill,
    step,
    tool,
)
from refold.temporal import workflow_for


@tool(effect="read_only", name="weather")
async def weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"rain in {city}, " * days


@tool(effect="idempotent")
async def void(result: dict[str, Any]) -> None:
    """Undo a charge."""


@tool(effect="compensate", undo=void)
async def bill(cents: int) -> dict[str, Any]:
    """Charge an amount."""
    return {"id": f"P{cents}"}


@tool(effect="at_most_once")
async def mail(to: str) -> None:
    """Write a mail."""


@tool(effect="idempotent")
async def obey(how: str, size: int = 0) -> str:
    """Do as it is told; what, is the recording's affair."""
    return how


class Age(BaseModel):
    years: int


@flow_skill(id="r_talk")
class Talk:
    """Asks twice, once for a name and once for a number that must be one."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        name = await ctx.ask("name", "Who are you?")
        age = await ctx.ask("age", "How old are you?", expect=Age)
        return ctx.complete(f"{name.text} is {age.years}", [Artifact.from_data("age", {"years": age.years})])


@flow_skill(id="r_gather", retry=RetryPolicy(max_retries=2, base=0.02))
class Gathers:
    """Tools and a sleep at once, by what it is told; catches one failure."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        calls: list[Any] = [ctx.tool(obey, how=how) for how in content.text.split()]
        try:
            found = await ctx.gather(*calls, ctx.sleep(0.05))
        except CommandError as error:
            ctx.say(f"caught {error.failure.message}")
            found = (await ctx.tool(obey, how="again"), "")
        ctx.status("nearly")
        return ctx.complete(", ".join(str(one) for one in found))


@flow_skill(id="r_parallel")
class Parallel:
    """Coroutines at once, at most two calls out."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.complete(" | ".join(await ctx.parallel(*(self.two(ctx, name) for name in "abc"), limit=2)))

    async def two(self, ctx: Ctx, name: str) -> str:
        first = await ctx.tool(obey, how=name)
        return f"{first}, {await ctx.tool(obey, how=first + name)}"


@flow_skill(id="r_patient")
class Patient:
    """Sleeps a day."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        before = ctx.now
        await ctx.sleep(86400)
        return ctx.complete(f"{(ctx.now - before).total_seconds():.0f}")


@flow_skill(id="r_calls", retry=RetryPolicy(max_retries=1, base=0.02))
class Calls:
    """Calls one tool with what it is told, and hands over how long the answer is."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        said = await ctx.tool(obey, how=content.text, size=33_500 if content.text == "large" else 0)
        new = ctx.patched("length")
        return ctx.complete(f"{len(said)} characters" if new else said)


@flow_skill(id="r_blocks", retry=RetryPolicy(max_retries=1, base=0.02, on_exhausted="block"))
class Blocks:
    """Waits for a dependency that is down."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(obey, how=content.text))


@flow_skill(id="r_bug")
class Bug:
    """A bug: divides by what it is told."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        reply = await ctx.ask("number", "A number?")
        if reply.text == "0":
            raise ZeroDivisionError("integer division or modulo by zero")  # Python 3.14 says it otherwise
        return ctx.complete(f"{1 // int(reply.text)}")


@flow_skill(id="r_rejects")
class Rejects:
    """Declines."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.reject(f"not {content.text}")


TWO = GatePolicy(approvers=("ada", "bob"), needed=2)
ANYBODY = GatePolicy(on_denied="continue", timeout_s=None, reminder_s=None, allow_unsigned=True)


@flow_skill(id="r_gates")
class Gates:
    """A gate for two, whose amount may be changed; then one that may be denied, and is met by a step of its own."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        both = await ctx.approve("both", "Both?", show={"cents": 5, "to": "A1"}, policy=TWO, editable=["cents"])
        return ctx.await_approval("sure", "Sure?", show=both.shown, policy=ANYBODY, by=both.approver)

    @step(resume_from="begin")
    async def decided(self, ctx: Ctx, decision: DecisionMade, by: str) -> Transition:
        return ctx.complete(f"{by}, {decision.decision}")


@flow_skill(id="r_buys")
class Buys:
    """Charges twice, asks a person, and writes a mail, which may fail: what is charged is then given back."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(bill, id="first", cents=100, key=f"charge:{content.text}:1")
        await ctx.tool(bill, id="second", cents=200, key=f"charge:{content.text}:2")
        await ctx.approve("go on", "Go on?", show=content.text)
        await ctx.tool(mail, to=content.text)
        return ctx.complete("bought")


@flow_skill(id="r_whole")
class Whole:
    """Runs another skill, an activity and a workflow that were there before."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        one, product, letter = await ctx.gather(
            ctx.skill("one", content.text, "go"),
            ctx.activity("product", "multiply", 6, 7, timeout_s=20),
            ctx.workflow("letter", "Letter", "Ada"),
        )
        return ctx.complete(f"{one.text}; {product}; {letter}", list(one.artifacts))


@flow_skill(id="r_chats")
class Chats:
    """A model with a tool; the user may go on after each answer."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("turn", say=[content.text])

    @step
    async def turn(self, ctx: Ctx, say: list[str | ToolReturn]) -> Transition:
        reply = await ctx.chat("model", say, instructions="You help with the weather. " * 10, tools=[weather])
        if reply.tool_calls:
            returns = [
                ToolReturn(id=call.id, name=call.name, value=await ctx.tool(weather, call.args))
                for call in reply.tool_calls
            ]
            return ctx.goto("turn", say=returns)
        return ctx.await_input("next", reply.text)

    @step(resume_from="turn")
    async def more(self, ctx: Ctx, content: Content) -> Transition:
        if content.text == "bye":
            return ctx.complete(f"{len(ctx.thread())} turns")
        return ctx.goto("turn", say=[content.text])


class Order(BaseModel):
    """What the steps share."""

    model_config = {"frozen": True}

    item: str
    price: int = 0
    note: str = ""


ORDER = Contract(state=Order, begins=lambda content, ctx: Order(item=content.text), owned=("item",))


@flow_skill(id="r_contract", contract=ORDER)
class UnderContract:
    """Asks a model for a price and the user for a note, which may break the contract."""

    @step(start=True, reads=["item"], writes=["price"])
    async def begin(self, ctx: Ctx, state: Order) -> Transition:
        await ctx.llm("price", "What does it cost?", state.item)
        return ctx.await_input("note", "Anything else?").patch(price=3)

    @step(resume_from="begin", reads=["item", "price"], writes=["note"])
    async def noted(self, ctx: Ctx, content: Content, state: Order) -> Transition:
        if content.text == "overstep":
            return ctx.complete("never").patch(price=4)
        return ctx.complete(f"{state.item} for {state.price}").patch(note=content.text)


class Open(BaseModel):
    """The one state of the reducer below."""

    said: int = 0


@flow_skill(id="r_counts")
class Counts:
    """A reducer that answers each message and waits for the next."""

    @staticmethod
    def initial() -> Open:
        return Open()

    def on_event(self, state: Open, event: Event, ctx: Ctx) -> Transition:
        state = Open(said=state.said + isinstance(event, UserMessage))
        if isinstance(event, UserMessage) and event.content.text == "stop":
            return Transition.complete(state).message(f"stopped at {state.said}")
        if isinstance(event, UserMessage) and event.content.text == "call":
            return Transition.to(state).cmd(Cmd.tool("call", obey, {"how": "called"}))
        return Transition.await_input("next", "And then?", state)


TalkWorkflow = workflow_for(Talk)
GathersWorkflow = workflow_for(Gathers)
ParallelWorkflow = workflow_for(Parallel)
PatientWorkflow = workflow_for(Patient)
CallsWorkflow = workflow_for(Calls)
BlocksWorkflow = workflow_for(Blocks)
BugWorkflow = workflow_for(Bug)
RejectsWorkflow = workflow_for(Rejects)
GatesWorkflow = workflow_for(Gates)
BuysWorkflow = workflow_for(Buys)
WholeWorkflow = workflow_for(Whole)
ChatsWorkflow = workflow_for(Chats)
UnderContractWorkflow = workflow_for(UnderContract)
CountsWorkflow = workflow_for(Counts)
