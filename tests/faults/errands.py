"""What the tasks of the random faults do: look up, charge, wait, ask, fetch much, hand a part to another task, ship."""

from __future__ import annotations

import httpx
from pydantic import BaseModel

from activities.notices import send_mail
from activities.payments import Payment, charge_card, gateway, moved
from refold import Ctx, RetryPolicy, Transition, flow_skill, step, tool
from refold.effects import current
from refold.temporal import workflow_for

PATIENT = RetryPolicy(max_retries=30, cap=4.0)
"""The services are in trouble for seconds, not for the minutes that the default is made for."""


@tool(effect="idempotent", timeout_s=20)
async def ship(order_id: str) -> Payment:
    """Send the parcel; the shop recognises the key."""
    asked = {"kind": "ship", "order_id": order_id, "amount_cents": 0}
    response = await current().http.post(f"{gateway()}/payments", json=asked)
    response.raise_for_status()
    return Payment.model_validate_json(response.content)


@tool(effect="at_most_once", probe=moved, timeout_s=20)
def tip(order_id: str) -> Payment:
    """Pay a tip, from a thread and with a client of its own."""
    asked = {"kind": "tip", "order_id": order_id, "amount_cents": 1}
    key = {"idempotency-key": current().idempotency_key}
    response = httpx.post(f"{gateway()}/payments", json=asked, headers=key, timeout=10)
    response.raise_for_status()
    return Payment.model_validate_json(response.content)


@tool(effect="read_only")
async def manual(size: int) -> str:
    """A long text."""
    return "x" * size


class Errand(BaseModel):
    """One task's work.

    Attributes:
        order_id: The order; no other task has it.
        asks: A person is asked before the end.
        manual: Characters of a text that is fetched; more than 32,768 go to storage.
        part: Another task pays the tip.
        fails: The task fails at its end, and the charge is given back.
    """

    order_id: str
    asks: bool = False
    manual: int = 0
    part: bool = False
    fails: bool = False


class Tip(BaseModel):
    order_id: str


@flow_skill(id="tips", input=Tip, retry=PATIENT)
class Tips:
    """Pays a tip."""

    @step(start=True)
    async def begin(self, ctx: Ctx, tip_for: Tip) -> Transition:
        await ctx.tool(tip, order_id=tip_for.order_id)
        return ctx.complete("tipped")


@flow_skill(id="errands", input=Errand, retry=PATIENT)
class Errands:
    """One errand with everything that can be interrupted."""

    @step(start=True)
    async def begin(self, ctx: Ctx, errand: Errand) -> Transition:
        await ctx.tool(charge_card, order_id=errand.order_id, amount_cents=100)
        length = len(await ctx.tool(manual, size=errand.manual)) if errand.manual else 0
        if errand.part:
            await ctx.skill("tip", Tips, Tip(order_id=errand.order_id))
        await ctx.sleep(0.5)
        if errand.asks:
            await ctx.ask("word", "Shall it be sent?")
        if errand.fails:
            return ctx.fail("as was asked")
        await ctx.tool(ship, order_id=errand.order_id)
        return ctx.complete(f"shipped, with {length} characters")


@flow_skill(id="billed", input=Tip, retry=PATIENT)
class Billed:
    """A charge, and a mail about it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, order: Tip) -> Transition:
        paid = await ctx.tool(charge_card, order_id=order.order_id, amount_cents=100)
        await ctx.tool(send_mail, to="ada@example.org", subject=order.order_id, text=paid.payment_id)
        return ctx.complete("billed")


BilledWorkflow = workflow_for(Billed)
TipsWorkflow = workflow_for(Tips)
ErrandsWorkflow = workflow_for(Errands)
