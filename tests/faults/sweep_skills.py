"""Skills of the sweeps: a charge under each policy, and effects that lose their worker."""

from __future__ import annotations

import asyncio
import os
import signal

from pydantic import BaseModel

from activities.notices import send_mail
from activities.orders import find_order
from activities.payments import Payment, charge_card, moved, pay_refund
from refold import Content, Ctx, RetryPolicy, Transition, flow_skill, step, tool
from refold.agent import Agent
from refold.effects import current
from refold.temporal import workflow_for
from tests.faults.skills import note
from workflows.careful_desk import LOOP


async def _charge(order_id: str) -> Payment:
    asked = {"kind": "charge", "order_id": order_id, "amount_cents": 100}
    response = await current().http.post(f"{os.environ['PAYMENTS_URL']}/payments", json=asked)
    response.raise_for_status()
    return Payment.model_validate_json(response.content)


@tool(effect="idempotent")
async def charge_idempotent(order_id: str) -> Payment:
    """As if the gateway knew keys."""
    return await _charge(order_id)


@tool(effect="at_most_once", probe=moved)
async def charge_probed(order_id: str) -> Payment:
    """Asks the gateway where it is not known."""
    return await _charge(order_id)


@tool(effect="at_most_once")
async def charge_once(order_id: str) -> Payment:
    """Asks a person where it is not known."""
    return await _charge(order_id)


@tool(effect="at_most_once")
async def charge_slowly(order_id: str, gate: str) -> Payment:
    """Charges, then waits until the file `gate` exists."""
    note("begun")
    paid = await _charge(order_id)
    while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240, PTH110 - another process opens it
        await asyncio.sleep(0.02)
    note("done")
    return paid


@tool(effect="idempotent")
async def deadly(gate: str) -> None:
    """Kills its worker, every time, until the file `gate` exists."""
    note("begun")
    if not os.path.exists(gate):  # noqa: ASYNC240, PTH110 - another process makes it
        os.kill(os.getpid(), signal.SIGKILL)


class Order(BaseModel):
    order_id: str
    how: str
    gate: str = ""


@flow_skill(id="charges", input=Order)
class Charges:
    """Charges once, by the tool that is named."""

    @step(start=True)
    async def begin(self, ctx: Ctx, order: Order) -> Transition:
        more = {"gate": order.gate} if order.gate else {}
        await ctx.tool(order.how, {"order_id": order.order_id, **more})
        return ctx.complete("charged")


@flow_skill(id="deadly_step")
class DeadlyStep:
    """Asks for what kills its worker."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(deadly, gate=content.text, retry=RetryPolicy(probe_s=5))
        return ctx.complete()


Till = Agent("till", instructions="Charge.", tools=[find_order, charge_card, send_mail], gates="none")

CarefulTill = Agent(
    "careful_till",
    instructions="""
-> Look, refund, write.
-> find_order(order_id="A1"), pay_refund(order_id="A1", amount_cents=500)
-> send_mail(to="ada@example.org", subject="Order A1", text="Paid back.")
-> Paid back.
""",
    tools=[find_order, pay_refund, send_mail],
    gates="none",
    loop=LOOP,
)

ChargesWorkflow = workflow_for(Charges)
TillWorkflow = workflow_for(Till)
CarefulTillWorkflow = workflow_for(CarefulTill)
DeadlyStepWorkflow = workflow_for(DeadlyStep)
