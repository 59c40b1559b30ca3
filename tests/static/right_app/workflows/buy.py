"""Buys what was ordered, once a person has agreed."""

from activities.shop import Order, charge, find_order
from pydantic import BaseModel

from refold import Content, Ctx, GatePolicy, Transition, flow_skill, step
from refold.temporal import workflow_for


class Wish(BaseModel):
    """What a task starts from."""

    order_id: str


class Advice(BaseModel):
    """What the model is asked for."""

    text: str = ""


@flow_skill(id="buy", input=Wish)
class Buy:
    """Looks the order up, asks whoever must be asked, and pays."""

    @step(start=True)
    async def look(self, ctx: Ctx, wish: Wish) -> Transition:
        order = await ctx.tool(find_order, order_id=wish.order_id)
        return ctx.goto("judge", order=order, asked=0)

    @step
    async def judge(self, ctx: Ctx, order: Order, asked: int) -> Transition:
        advice = await ctx.llm("advice", "Is it worth it?", expect=Advice)
        if advice.text:
            return ctx.goto("gate", order=order)
        return ctx.await_input("doubt", "What do you think?", order=order, asked=asked)

    @step(resume_from="judge")
    async def told(self, ctx: Ctx, content: Content, order: Order, asked: int) -> Transition:
        return ctx.goto("judge", order=order, asked=asked + 1)

    @step
    async def gate(self, ctx: Ctx, order: Order) -> Transition:
        policy = GatePolicy(approvers=("Ann", "Bob"), needed=2)
        return ctx.await_approval("buy", "Buy it?", show=order, policy=policy, order=order)

    @step(resume_from="gate")
    async def pay(self, ctx: Ctx, order: Order) -> Transition:
        paid = await ctx.tool(charge, order_id=order.order_id, cents=order.cents)
        await ctx.skill("letter", "letter", f"Paid: {paid}")
        return ctx.complete(paid)


BuyWorkflow = workflow_for(Buy)
