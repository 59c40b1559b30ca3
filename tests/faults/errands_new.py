"""A skill and a tool of a newer release, which some workers of the random faults do not know."""

from __future__ import annotations

from refold import Ctx, Transition, flow_skill, step, tool
from refold.temporal import workflow_for
from tests.faults.errands import PATIENT, Errand, Tip, Tips, ship


@tool(effect="read_only")
async def insure(order_id: str) -> str:
    """A policy for the parcel."""
    return f"policy for {order_id}"


@flow_skill(id="insured", input=Errand, retry=PATIENT)
class Insured:
    """An errand with an insurance."""

    @step(start=True)
    async def begin(self, ctx: Ctx, errand: Errand) -> Transition:
        await ctx.tool(insure, order_id=errand.order_id)
        await ctx.skill("tip", Tips, Tip(order_id=errand.order_id))
        await ctx.tool(ship, order_id=errand.order_id)
        return ctx.complete("insured and shipped")


InsuredWorkflow = workflow_for(Insured)
