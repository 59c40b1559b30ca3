"""A refund: a tool looks the order up, a model gives its view, a person decides, the refund is paid, a mail is sent."""

from typing import Literal

from pydantic import BaseModel, Field

from activities.notices import send_mail
from activities.orders import Order, find_order
from activities.payments import pay_refund
from refold import Ctx, GatePolicy, Transition, flow_skill, step
from refold.temporal import workflow_for

LIMIT_CENTS = 10_000
"""Above this amount, the person who asked for the refund cannot approve it."""

POLICY = (
    "You advise on refunds. Recommend to pay or to decline, by the customer's reason and what was paid. A person "
    "decides; give them your view in one or two sentences in `text`."
)


class Refund(BaseModel):
    """What is asked for."""

    order_id: str = Field(min_length=1)
    amount_cents: int = Field(gt=0)
    reason: str = ""


class Advice(BaseModel):
    """The model's view. It is shown, and moves nothing."""

    recommendation: Literal["pay", "decline"]
    text: str = ""


@flow_skill(id="refund", input=Refund, tags=["payments"], examples=['{"order_id": "A1", "amount_cents": 1999}'])
class RefundSkill:
    """Refunds an order once a person has approved it: pays once, even if processes die, and writes to the customer."""

    @step(start=True)
    async def validate(self, ctx: Ctx, refund: Refund) -> Transition:
        order = await ctx.tool(find_order, order_id=refund.order_id)
        if refund.amount_cents > order.paid_cents:
            return ctx.fail(f"order {order.order_id} was paid with {order.paid_cents} cents, not {refund.amount_cents}")
        return ctx.goto("policy", refund=refund, order=order)

    @step
    async def policy(self, ctx: Ctx, refund: Refund, order: Order) -> Transition:
        asked = f"Reason: {refund.reason or 'none given'}\nAmount: {refund.amount_cents}\nPaid: {order.paid_cents}"
        advice = await ctx.llm("policy", POLICY, asked, expect=Advice)
        return ctx.goto("gate", refund=refund, order=order, advice=advice)

    @step
    async def gate(self, ctx: Ctx, refund: Refund, order: Order, advice: Advice) -> Transition:
        return ctx.await_approval(
            "approval",
            f"Refund {refund.amount_cents} cents for order {refund.order_id}? The model says: {advice.text or '-'}",
            show={**refund.model_dump(), "customer": order.customer, "recommendation": advice.recommendation},
            policy=GatePolicy(second_person=refund.amount_cents > LIMIT_CENTS),
            refund=refund,
            order=order,
        )

    @step(resume_from="gate")
    async def pay(self, ctx: Ctx, refund: Refund, order: Order) -> Transition:
        # A business key: two tasks for one refund are one payment.
        key = f"refund:{refund.order_id}"
        paid = await ctx.tool(pay_refund, order_id=refund.order_id, amount_cents=refund.amount_cents, key=key)
        return ctx.goto("notify", order=order, payment_id=paid.payment_id, amount_cents=paid.amount_cents)

    @step
    async def notify(self, ctx: Ctx, order: Order, payment_id: str, amount_cents: int) -> Transition:
        text = f"We have refunded {amount_cents / 100:.2f} for order {order.order_id}. Reference: {payment_id}."
        await ctx.tool(send_mail, to=order.customer, subject=f"Your refund for order {order.order_id}", text=text)
        return ctx.complete(text)


RefundSkillWorkflow = workflow_for(RefundSkill)
