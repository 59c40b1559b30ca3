"""Skills of the tests of gates, retries and compensation, and the tools they call."""

from __future__ import annotations

import os

from pydantic import BaseModel

from activities.notices import send_mail
from activities.payments import charge_card, give_back
from refold import (
    Cmd,
    Content,
    Ctx,
    Event,
    GatePolicy,
    LlmResult,
    RetryPolicy,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    step,
    tool,
)
from refold.effects import current
from refold.temporal import workflow_for


@tool(effect="read_only")
async def fact(topic: str) -> int:
    """What the shop knows of a topic."""
    response = await current().http.get(f"{os.environ['FACTS_URL']}/facts/{topic}")
    response.raise_for_status()
    return int(response.json()["value"])


TOOLS = [charge_card, fact, give_back, send_mail]


class Plan(BaseModel):
    """How a gate is kept.

    Attributes:
        amounts: A gate for each.
    """

    amounts: list[int] = [50]
    approvers: tuple[str, ...] = ()
    needed: int = 1
    on_denied: str = "fail"
    allow_unsigned: bool = False
    second_person: bool = False


@flow_skill(id="gates", input=Plan)
class Gates:
    """One gate after the other, then done."""

    @step(start=True)
    async def begin(self, ctx: Ctx, plan: Plan) -> Transition:
        policy = GatePolicy.model_validate(plan.model_dump(exclude={"amounts"}))
        decided = [
            await ctx.approve("spend", f"Spend {amount}?", show={"amount": amount}, policy=policy)
            for amount in plan.amounts
        ]
        return ctx.complete(", ".join(f"{one.decision} by {one.approver}" for one in decided))


@flow_skill(id="bundle", input=Plan)
class Bundle:
    """Its gates are open together, as those of the calls of one turn of an agent."""

    @step(start=True)
    async def begin(self, ctx: Ctx, plan: Plan) -> Transition:
        policy = GatePolicy.model_validate(plan.model_dump(exclude={"amounts"}))
        asked = [
            ctx.approve(f"spend {one}", f"Spend {one}?", show={"amount": one}, policy=policy) for one in plan.amounts
        ]
        return ctx.complete(
            ", ".join(f"{one.slot} {one.decision} by {one.approver}" for one in await ctx.gather(*asked))
        )


@flow_skill(id="asks_facts")
class AsksFacts:
    """Asks for one fact; three retries."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(f"{await ctx.tool(fact, topic=content.text)}")


@flow_skill(id="waits_for_facts", retry=RetryPolicy(on_exhausted="block"))
class WaitsForFacts:
    """Asks for one fact, and waits until it can be had."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(f"{await ctx.tool(fact, topic=content.text)}")


@flow_skill(id="buys_twice")
class BuysTwice:
    """Charges a card twice, asks, then looks up a fact: what is charged is given back if that fails."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        order = content.text
        await ctx.tool(charge_card, id="first", order_id=order, amount_cents=100, key=f"charge:{order}:1")
        await ctx.tool(charge_card, id="second", order_id=order, amount_cents=200, key=f"charge:{order}:2")
        await ctx.ask("go on", "Go on?")
        return ctx.complete(f"{await ctx.tool(fact, topic='tides')}")


@flow_skill(id="orders")
class Orders:
    """Lets another skill buy."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        bought = await ctx.skill("purchase", BuysTwice, content)
        return ctx.complete(f"bought: {bought.text}")


class Open(BaseModel):
    """The one state of the reducer below."""

    said: str = ""


@flow_skill(id="judged")
class Judged:
    """Asks for a person's decision while a model is still speaking."""

    @staticmethod
    def initial() -> Open:
        return Open()

    def on_event(self, state: Open, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage(content=content):
                judge = Cmd.llm("judge", "", content, model="scripted:slow")
                return Transition.to(state).cmd(judge).cmd(Cmd.tool("fact", fact, topic="tides"))
            case ToolResult():
                return Transition.await_approval("spend", "Spend 50?", state, show={"amount": 50})
            case LlmResult(value=said):
                return Transition.complete(state).message(str(said))
            case _:
                return Transition.to(state)


GatesWorkflow = workflow_for(Gates)
BundleWorkflow = workflow_for(Bundle)
AsksFactsWorkflow = workflow_for(AsksFacts)
WaitsForFactsWorkflow = workflow_for(WaitsForFacts)
BuysTwiceWorkflow = workflow_for(BuysTwice)
OrdersWorkflow = workflow_for(Orders)
JudgedWorkflow = workflow_for(Judged)
