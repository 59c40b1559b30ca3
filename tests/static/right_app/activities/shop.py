"""What the shop can do."""

from pydantic import BaseModel

from refold import tool


class Order(BaseModel):
    """What was ordered."""

    order_id: str
    cents: int


@tool(effect="read_only")
async def find_order(order_id: str) -> Order:
    """Find an order."""
    return Order(order_id=order_id, cents=1000)


@tool(effect="idempotent")
def give_back(result: str) -> None:
    """Void a payment."""


@tool(effect="compensate", undo=give_back)
def charge(order_id: str, cents: int) -> str:
    """Charge the card."""
    return f"{order_id}: {cents}"
