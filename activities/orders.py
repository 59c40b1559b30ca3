"""Looking up orders."""

import os
from urllib.parse import quote

from pydantic import BaseModel

from refold import tool
from refold.effects import current


class Order(BaseModel):
    """An order, as far as a refund needs it."""

    order_id: str
    customer: str
    paid_cents: int


@tool(effect="read_only", timeout_s=30)
async def find_order(order_id: str) -> Order:
    """An order by its id; 404 is final."""
    server = os.environ.get("ORDERS_URL", "http://localhost:8401")
    response = await current().http.get(f"{server}/orders/{quote(order_id, safe='')}")
    response.raise_for_status()
    return Order.model_validate_json(response.content)
