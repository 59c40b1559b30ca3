"""`sealed_skills` after a change: of what comes later, of a step that is over, and of the step itself."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from refold import Content, Ctx, Event, GatePolicy, Transition, flow_skill, step
from refold.temporal import workflow_for
from tests.temporal.upgrade.sealed_skills import ORDERED, WEEK_S, Order, pass_door, pay


def upgrade(version: int, state: JsonValue) -> JsonValue:
    """A state of version 1, unless it says that it cannot be upgraded."""
    assert version == 1
    if "stuck" in str(state):
        raise ValueError("nobody knows what this order means now")
    return state


@flow_skill(id="pays", version=2, upgrade=upgrade)
class Pays:
    """Waits for weeks at a gate, then pays."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(timeout_s=8 * WEEK_S, reminder_s=2 * WEEK_S)
        decided = await ctx.approve("pay", f"Pay 5 cents for {content.text}?", show={"cents": 5}, policy=policy)
        return ctx.complete(f"{await ctx.tool(pay, order=content.text)}, with {decided.approver}'s leave")


@flow_skill(id="passes")
class Passes:
    """Asks whether to pass, then passes a door, then asks."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.ask("pass", "Pass?")
        return ctx.goto("ask", passed=await ctx.tool(pass_door, name=content.text))

    @step
    async def ask(self, ctx: Ctx, passed: str) -> Transition:
        answer = await ctx.ask("next", f"Passed {passed}. And now?")
        return ctx.complete(f"{answer.text}, then")


@flow_skill(id="asks_twice")
class AsksTwice:
    """Pays before it asks."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(pay, order=content.text)
        await ctx.ask("go on 1", "Go on?")
        return ctx.complete("paid once")


@flow_skill(id="asks_twice_by_contract", contract=ORDERED)
class AsksTwiceByContract:
    """Pays before it asks, with a contract."""

    @step(start=True, reads=["name"])
    async def begin(self, ctx: Ctx, order: Order) -> Transition:
        await ctx.tool(pay, order=order.name)
        await ctx.ask("go on 1", "Go on?")
        return ctx.complete("paid once")


class Tab(BaseModel):
    """What a guest has ordered so far, by another name."""

    price: int = 0


@flow_skill(id="adds_up")
class AddsUp:
    """Would forget what was ordered."""

    @staticmethod
    def initial() -> Tab:
        return Tab(price=5)

    def on_event(self, state: Tab, event: Event, ctx: Ctx) -> Transition:
        return Transition.await_input("more", "What else?", state)


AddsUpWorkflow = workflow_for(AddsUp)
PaysWorkflow = workflow_for(Pays)
PassesWorkflow = workflow_for(Passes)
AsksTwiceWorkflow = workflow_for(AsksTwice)
AsksTwiceByContractWorkflow = workflow_for(AsksTwiceByContract)
