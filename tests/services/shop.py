"""A shop over real HTTP: its orders, and a payment gateway with a ledger of its own.

with Shop() as shop:
    os.environ |= shop.environment
    shop.order("A1", paid_cents=5_000)
    shop.trouble("/payments", 503, 503)
    ...
    assert [payment.amount_cents for payment in shop.paid("refund")] == [1_999]
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.services.serving import Serving


@dataclass(slots=True, kw_only=True)
class Paid:
    """A line in the gateway's ledger.

    Attributes:
        key: The idempotency key that the request carried.
        voided: It was undone.
    """

    payment_id: str
    kind: str
    order_id: str
    amount_cents: int
    key: str | None
    voided: bool = False

    @property
    def answer(self) -> dict[str, object]:
        """As the gateway tells it."""
        return {"payment_id": self.payment_id, "order_id": self.order_id, "amount_cents": self.amount_cents}


class Shop(Serving):
    """The server; runs in a thread of its own while it is entered as a context manager.

    Attributes:
        ledger: Every payment that was ever made, oldest first.
        asked: The paths of all requests, oldest first; ids cut off.
    """

    def __init__(self, *, honours_keys: bool = True) -> None:
        self.ledger: list[Paid] = []
        self.asked: list[str] = []
        self.honours_keys = honours_keys
        self._orders: dict[str, int] = {}
        self._trouble: dict[str, deque[tuple[int, dict[str, str]]]] = defaultdict(deque)
        self._held: dict[str, tuple[threading.Event, threading.Event]] = {}
        self._lose = 0
        self._hanging = 0
        routes = [
            Route("/orders/{order_id}", self._order),
            Route("/facts/{topic}", self._fact),
            Route("/payments", self._find, methods=["GET"]),
            Route("/payments", self._pay, methods=["POST"]),
            Route("/payments/{payment_id}/void", self._void, methods=["POST"]),
        ]
        super().__init__(Starlette(routes=routes))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send the application's tools here."""
        return {"ORDERS_URL": self.address, "PAYMENTS_URL": self.address, "FACTS_URL": self.address}

    def order(self, order_id: str, *, paid_cents: int) -> None:
        """There is such an order."""
        self._orders[order_id] = paid_cents

    def trouble(self, path: str, *statuses: int, retry_after: str | None = None) -> None:
        """Answer the next requests to a path (`/orders`, `/payments`) with these instead, and do nothing."""
        headers = {} if retry_after is None else {"retry-after": retry_after}
        self._trouble[path].extend((status, headers) for status in statuses)

    def calm(self) -> None:
        """No more trouble."""
        self._trouble.clear()
        self._lose = 0

    def lose(self, times: int = 1) -> None:
        """Make the next payments and then keep silent, until whoever asked is gone."""
        self._lose = times

    def delay(self, path: str) -> None:
        """Do what is asked at this path only when told to go on."""
        self._held[path] = (threading.Event(), threading.Event())

    def go_on(self, path: str) -> None:
        """Do what waits there, and delay nothing any more."""
        self._held.pop(path)[1].set()

    async def waited(self, path: str) -> None:
        """Return when a request waits there."""
        await asyncio.to_thread(self._held[path][0].wait)

    async def hangs(self) -> bool:
        """Whether somebody waits for an answer that will not come, to a payment that was made."""
        return self._hanging > 0

    def paid(self, kind: str) -> list[Paid]:
        """The payments of a kind that stand."""
        return [payment for payment in self.ledger if payment.kind == kind and not payment.voided]

    # --- routes

    def _troubled(self, request: Request, path: str) -> Response | None:
        self.asked.append(f"{request.method} {path}")
        if not self._trouble[path]:
            return None
        status, headers = self._trouble[path].popleft()
        return JSONResponse({"error": "trouble on demand"}, status, headers)

    async def _delayed(self, path: str) -> None:
        if path in self._held:
            came, done = self._held[path]
            came.set()
            await asyncio.to_thread(done.wait)

    async def _order(self, request: Request) -> Response:
        if (troubled := self._troubled(request, "/orders")) is not None:
            return troubled
        id = request.path_params["order_id"]
        if id not in self._orders:
            return JSONResponse({"error": "no such order"}, 404)
        customer = f"{id.lower()}@example.org"
        return JSONResponse({"order_id": id, "customer": customer, "paid_cents": self._orders[id]})

    async def _fact(self, request: Request) -> Response:
        if (troubled := self._troubled(request, "/facts")) is not None:
            return troubled
        await self._delayed("/facts")
        topic = request.path_params["topic"]
        return JSONResponse({"topic": topic, "value": sum(topic.encode()) % 97})

    async def _find(self, request: Request) -> Response:
        if (troubled := self._troubled(request, "/payments?key")) is not None:
            return troubled
        key = request.query_params["key"]
        found = next((payment for payment in self.ledger if payment.key == key), None)
        return JSONResponse({"error": "no payment"}, 404) if found is None else JSONResponse(found.answer)

    async def _pay(self, request: Request) -> Response:
        if (troubled := self._troubled(request, "/payments")) is not None:
            return troubled
        await self._delayed("/payments")
        asked = await request.json()
        key = request.headers.get("idempotency-key")
        known = next((payment for payment in self.ledger if payment.key == key), None)
        if known is not None and self.honours_keys:
            return JSONResponse(known.answer, 200)
        payment = Paid(payment_id=f"P{len(self.ledger) + 1}", key=key, **asked)
        self.ledger.append(payment)
        if self._lose:
            self._lose -= 1
            self._hanging += 1
            await request.receive()  # the body is read: what comes next is that the caller is gone
            self._hanging -= 1
        return JSONResponse(payment.answer, 201)

    async def _void(self, request: Request) -> Response:
        if (troubled := self._troubled(request, "/void")) is not None:
            return troubled
        payment = next(one for one in self.ledger if one.payment_id == request.path_params["payment_id"])
        payment.voided = True
        return JSONResponse(payment.answer)
