"""Skills that wait for a call to an address of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel

from refold import (
    ActivityResult,
    Callback,
    Cmd,
    CommandError,
    Ctx,
    Event,
    Transition,
    UserMessage,
    flow_skill,
    step,
    tool,
)
from refold.effects import Never
from refold.temporal import workflow_for


class Payment(BaseModel):
    amount_cents: int


handed: dict[str, str] = {}
"""The address that each task gave away, by the task's id; kept in the worker's process."""


@tool(effect="idempotent")
async def check_out(task: str, url: str) -> None:
    """Gives the address to the payment provider."""
    handed[task] = url


@flow_skill(id="checkout")
class Checkout:
    """Lets a provider say that a payment was made."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        paid = await ctx.callback("paid", expires_s=3600)
        await ctx.tool(check_out, task=ctx.task_id, url=paid.url)
        try:
            payment = await ctx.ask("paid", "the provider says that it is paid", expect=Payment, callback=paid)
        except CommandError as error:
            return ctx.complete(f"no payment: {error.failure.type}")
        return ctx.complete(f"paid {payment.amount_cents}")


@tool(effect="idempotent")
async def reserve(task: str) -> None:
    """Fails for good the first time."""
    if task not in reserved:
        reserved.add(task)
        raise Never("nothing is left")


reserved: set[str] = set()


@flow_skill(id="failing_checkout")
class FailingCheckout:
    """Fails once after it has given the address away."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        paid = await ctx.callback("paid", expires_s=3600)
        await ctx.tool(check_out, task=ctx.task_id, url=paid.url)
        await ctx.tool(reserve, task=ctx.task_id)
        payment = await ctx.ask("paid", "the payment", expect=Payment, callback=paid)
        return ctx.complete(f"paid {payment.amount_cents}")


@flow_skill(id="late_checkout")
class LateCheckout:
    """Asks a person between giving the address away and waiting for the call."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        paid = await ctx.callback("paid", expires_s=3600)
        await ctx.tool(check_out, task=ctx.task_id, url=paid.url)
        name = await ctx.ask("name", "Who pays?")
        payment = await ctx.ask("paid", "the payment", expect=Payment, callback=paid)
        return ctx.complete(f"{name} paid {payment.amount_cents}")


@flow_skill(id="impatient_checkout")
class ImpatientCheckout:
    """Asks a person whether to wait on when the call has not come within a minute."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        paid = await ctx.callback("paid", expires_s=3600)
        await ctx.tool(check_out, task=ctx.task_id, url=paid.url)
        try:
            payment = await ctx.ask("paid", "the payment", expect=Payment, callback=paid, timeout_s=60)
        except CommandError:
            await ctx.ask("longer", "Wait on?")
            payment = await ctx.ask("paid", "the payment", expect=Payment, callback=paid)
        return ctx.complete(f"paid {payment.amount_cents}")


@flow_skill(id="double_checkout")
class DoubleCheckout:
    """Asks for a second payment with the address that the first one was called at."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        paid = await ctx.callback("paid", expires_s=3600)
        await ctx.tool(check_out, task=ctx.task_id, url=paid.url)
        await ctx.ask("paid", "the payment", expect=Payment, callback=paid)
        return ctx.goto("again", paid=paid)

    @step
    async def again(self, ctx: Ctx, paid: Callback) -> Transition:
        await ctx.ask("more", "one more payment", expect=Payment, callback=paid)
        return ctx.complete("paid twice")


class Idle(BaseModel):
    kind: Literal["idle"] = "idle"


class Waits(BaseModel):
    kind: Literal["waits"] = "waits"


@flow_skill(id="checkout_by_hand")
class CheckoutByHand:
    """The same as a reducer, without the provider."""

    @staticmethod
    def initial() -> Idle | Waits:
        return Idle()

    def on_event(self, state: Idle | Waits, event: Event, ctx: Ctx) -> Transition:
        match state, event:
            case Idle(), UserMessage():
                return Transition.to(Waits()).cmd(Cmd.callback("address", ctx.now + timedelta(hours=1)))
            case Waits(), ActivityResult(id="address", value=value):
                paid = ctx.decode(Callback, value)
                asked = Cmd.ask_user("paid", "the payment", expect=Payment, callback=paid)
                return Transition.to(Waits()).cmd(asked).message(paid.url)
            case Waits(), UserMessage(slot="paid", content=content):
                return Transition.complete().message(f"paid {ctx.decode(Payment, content.data).amount_cents}")
            case _:
                return Transition.ignore(state)


TOOLS: list[Any] = [check_out, reserve]

CheckoutWorkflow = workflow_for(Checkout)
LateCheckoutWorkflow = workflow_for(LateCheckout)
CheckoutByHandWorkflow = workflow_for(CheckoutByHand)
ImpatientCheckoutWorkflow = workflow_for(ImpatientCheckout)
DoubleCheckoutWorkflow = workflow_for(DoubleCheckout)
FailingCheckoutWorkflow = workflow_for(FailingCheckout)
