"""Payments, by a payment gateway that recognises idempotency keys."""

import os

from pydantic import BaseModel

from refold import tool
from refold.effects import Done, NotDone, Unknown, current


class Payment(BaseModel):
    """Money that the gateway has moved."""

    payment_id: str
    order_id: str
    amount_cents: int


def gateway() -> str:
    """The gateway's address: set by the application, never by the caller."""
    return os.environ.get("PAYMENTS_URL", "http://localhost:8402")


async def moved(key: str) -> Done | NotDone | Unknown:
    """The probe: whether the gateway has moved money under this key."""
    response = await current().http.get(f"{gateway()}/payments", params={"key": key})
    if response.status_code == 404:
        return NotDone()  # should the lost request arrive late, the next attempt has the same key
    if not response.is_success:
        return Unknown(f"the gateway answered {response.status_code}")
    return Done(Payment.model_validate_json(response.content))


@tool(effect="at_most_once", probe=moved, timeout_s=60)
async def pay_refund(order_id: str, amount_cents: int) -> Payment:
    """Pay an amount back to the customer of the order.

    The worker's client sends the idempotency key along, so this function need not.

    Args:
        order_id: The order.
        amount_cents: How much, in cents.
    """
    return await _move("refund", order_id, amount_cents)


@tool(effect="idempotent", timeout_s=60)
async def give_back(result: Payment) -> None:
    """Undo a charge. Voiding a payment twice is voiding it once.

    Args:
        result: The charge's payment.
    """
    response = await current().http.post(f"{gateway()}/payments/{result.payment_id}/void")
    response.raise_for_status()


@tool(effect="compensate", undo=give_back, probe=moved, timeout_s=60)
async def charge_card(order_id: str, amount_cents: int) -> Payment:
    """Charge the card that the order was placed with; voided if the task does not complete.

    Args:
        order_id: The order.
        amount_cents: How much, in cents.
    """
    return await _move("charge", order_id, amount_cents)


async def _move(kind: str, order_id: str, amount_cents: int) -> Payment:
    asked = {"kind": kind, "order_id": order_id, "amount_cents": amount_cents}
    response = await current().http.post(f"{gateway()}/payments", json=asked)
    response.raise_for_status()
    return Payment.model_validate_json(response.content)
