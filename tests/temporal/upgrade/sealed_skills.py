"""Skills of the tests of seals and upgrades, and the tools they call."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from pydantic import BaseModel, ConfigDict

from refold import Content, Contract, Ctx, Event, GatePolicy, Transition, flow_skill, step, tool
from refold.temporal import workflow_for

WEEK_S = 7 * 86_400.0

paid: Counter[str] = Counter()
"""How often each order was paid."""

doors: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""What effects wait for, by name."""

reached: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""Set once an effect waits for that door."""


@tool(effect="idempotent")
async def pay(order: str) -> str:
    """Pay for an order."""
    paid[order] += 1
    return f"paid {order}"


@tool(effect="idempotent")
async def pass_door(name: str) -> str:
    """Wait until a door is open."""
    reached[name].set()
    await doors[name].wait()
    return name


TOOLS = [pay, pass_door]


@flow_skill(id="pays")
class Pays:
    """Waits for weeks at a gate, then pays."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(timeout_s=8 * WEEK_S, reminder_s=2 * WEEK_S)
        decided = await ctx.approve("pay", f"Pay 5 cents for {content.text}?", show={"cents": 5}, policy=policy)
        return ctx.complete(f"{await ctx.tool(pay, order=content.text)}, by {decided.approver}")


@flow_skill(id="passes")
class Passes:
    """Passes a door, then asks."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("ask", passed=await ctx.tool(pass_door, name=content.text))

    @step
    async def ask(self, ctx: Ctx, passed: str) -> Transition:
        answer = await ctx.ask("next", f"Passed {passed}. And now?")
        return ctx.complete(answer.text)


@flow_skill(id="whole_of_pays")
class Whole:
    """Lets another skill pay."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("payment", Pays, content)).text)


@flow_skill(id="asks_twice")
class AsksTwice:
    """Asks twice, and pays after each answer."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        for number in (1, 2):
            await ctx.ask(f"go on {number}", "Go on?")
            await ctx.tool(pay, id=f"pay {number}", order=f"{content.text} {number}")
        return ctx.complete("paid twice")


class Order(BaseModel):
    """What is paid for."""

    model_config = ConfigDict(frozen=True)

    name: str = ""


ORDERED = Contract(state=Order, begins=lambda content, ctx: Order(name=content.text))


@flow_skill(id="asks_twice_by_contract", contract=ORDERED)
class AsksTwiceByContract:
    """Asks twice, and pays after each answer, with a contract."""

    @step(start=True, reads=["name"])
    async def begin(self, ctx: Ctx, order: Order) -> Transition:
        for number in (1, 2):
            await ctx.ask(f"go on {number}", "Go on?")
            await ctx.tool(pay, id=f"pay {number}", order=f"{order.name} {number}")
        return ctx.complete("paid twice")


@flow_skill(id="seals_itself", seal_at_pause=True)
class SealsItself(AsksTwice):
    """The same, and seals itself at each question."""


@flow_skill(id="whole_of_seals_itself", seal_at_pause=True)
class WholeOfSealsItself:
    """Lets another skill ask."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("asking", SealsItself, content)).text)


@flow_skill(id="asks_both")
class AsksBoth:
    """Asks twice, with nothing between."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        first = await ctx.ask("first", f"{content.text}?")
        return ctx.complete(f"{first.text}, {(await ctx.ask('second', 'And then?')).text}")


@flow_skill(id="whole_of_asks_both")
class WholeOfAsksBoth:
    """Lets another skill ask."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("asking", AsksBoth, content)).text)


class Tab(BaseModel):
    """What a guest has ordered so far."""

    cents: int = 0


@flow_skill(id="adds_up")
class AddsUp:
    """A reducer that counts what is ordered, and asks for more."""

    @staticmethod
    def initial() -> Tab:
        return Tab(cents=5)

    def on_event(self, state: Tab, event: Event, ctx: Ctx) -> Transition:
        return Transition.await_input("more", "What else?", state)


AddsUpWorkflow = workflow_for(AddsUp)
PaysWorkflow = workflow_for(Pays)
PassesWorkflow = workflow_for(Passes)
WholeWorkflow = workflow_for(Whole)
AsksTwiceWorkflow = workflow_for(AsksTwice)
AsksTwiceByContractWorkflow = workflow_for(AsksTwiceByContract)
WholeOfSealsItselfWorkflow = workflow_for(WholeOfSealsItself)
SealsItselfWorkflow = workflow_for(SealsItself)
AsksBothWorkflow = workflow_for(AsksBoth)
WholeOfAsksBothWorkflow = workflow_for(WholeOfAsksBoth)
