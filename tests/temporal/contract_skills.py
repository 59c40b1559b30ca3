"""Skills of the tests of contracts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from refold import Content, Contract, Ctx, StatePatch, Transition, flow_skill, step
from refold.temporal import workflow_for


class Order(BaseModel):
    """What the steps share."""

    model_config = ConfigDict(frozen=True)

    item: str
    price: int = 0
    note: str = ""


def begun(content: Content, ctx: Ctx) -> Order:
    """The first state."""
    return Order(item=content.text)


ORDER = Contract(state=Order, begins=begun, owned=("item",))


@flow_skill(id="asks_under_contract", contract=ORDER)
class AsksUnderContract:
    """Asks for a note, and ends."""

    @step(start=True, reads=["item"], writes=["price"])
    async def begin(self, ctx: Ctx, state: Order) -> Transition:
        await ctx.llm("price", "What does it cost?", state.item)
        return ctx.await_input("note", "Anything else?").patch(price=3)

    @step(resume_from="begin", reads=["item", "price"], writes=["note"])
    async def noted(self, ctx: Ctx, content: Content, state: Order) -> Transition:
        return ctx.complete(f"{state.item} for {state.price}").patch(note=content.text)


@flow_skill(id="oversteps", contract=ORDER)
class Oversteps:
    """Writes what it may not, once a model has answered."""

    @step(start=True, reads=["item"], writes=["price"], next=lambda seen: "begin")
    async def begin(self, ctx: Ctx, state: Order) -> StatePatch:
        await ctx.llm("price", "What does it cost?", state.item)
        return StatePatch(price=3, note="cheap")


AsksUnderContractWorkflow = workflow_for(AsksUnderContract)
OverstepsWorkflow = workflow_for(Oversteps)
