"""Skills whose tasks are exported: one that asks, pays and notes, and one that hands work to it."""

from __future__ import annotations

from pydantic import BaseModel

from refold import Content, Ctx, EffectPolicy, GatePolicy, Transition, flow_skill, step, tool
from refold.temporal import workflow_for
from refold.testing import FakeEngine

FIRED: list[str] = []
"""The effects that took place."""


class Order(BaseModel):
    shop: str
    cents: int


@tool(effect=EffectPolicy.AT_MOST_ONCE)
def pay(shop: str, cents: int) -> str:
    """Pay a shop."""
    FIRED.append(f"pay {shop} {cents}")
    return f"paid {cents}"


@tool(effect=EffectPolicy.READ_ONLY)
def price(shop: str) -> int:
    """What a shop wants."""
    FIRED.append(f"price {shop}")
    return 5


@flow_skill(id="buys", input=Order)
class Buys:
    """Looks up a price, asks a person, pays, and says so in the model's words."""

    @step(start=True)
    async def buy(self, ctx: Ctx, order: Order) -> Transition:
        cents = await ctx.tool(price, shop=order.shop)
        decision = await ctx.approve(
            "pay", f"Pay {cents} cents to {order.shop}?", show={"cents": cents}, policy=GatePolicy(reminder_s=None)
        )
        paid = await ctx.tool(pay, shop=order.shop, cents=cents)
        words = await ctx.llm("words", "Thank the shop.", paid)
        ctx.say(f"{decision.approver} allowed it.")
        return ctx.complete(words)


@tool(effect=EffectPolicy.AT_MOST_ONCE)
def book(order: str) -> str:
    """Book an order."""
    FIRED.append(f"book {order}")
    return "booked"


@flow_skill(id="books")
class Books:
    """Books an order under its number; `none` books nothing."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Book it."""
        order = content.text.partition(" ")[0] or "none"
        if order != "none":
            await ctx.tool(book, order=order, key=f"order:{order}")
        return ctx.complete("Booked.")


@flow_skill(id="sends")
class Sends:
    """Lets another skill buy."""

    @step(start=True)
    async def send(self, ctx: Ctx, content: Content) -> Transition:
        bought = await ctx.skill("bought", Buys, Content.from_data({"shop": content.text, "cents": 5}))
        return ctx.complete(bought.text)


ANSWERS = {"words": "Thank you, shop."}


def engine() -> FakeEngine:
    """An engine that pays for real, as far as `FIRED` is real."""
    return FakeEngine([Buys, Sends], answers=ANSWERS, tools=[pay, price])


async def bought(at: FakeEngine, task_id: str = "t1") -> None:
    """A task that bought something."""
    await at.start("buys", Content.from_data({"shop": "Ada & Söhne", "cents": 5}), task_id=task_id, owner="olga")
    await at.decide(task_id, approved=True, approver="grace", comment="cheap enough")


BooksWorkflow = workflow_for(Books)
BuysWorkflow = workflow_for(Buys)
SendsWorkflow = workflow_for(Sends)
