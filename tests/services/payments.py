"""Payment gateways over real HTTP: one that honours idempotency keys, one that ignores them, one that loses answers.

    with PaymentGateway() as gateway:                     # honours keys, as Stripe does
        gateway.fail(503, 503)                            # the next two requests
        gateway.lose(1)                                   # performed, then the connection is cut
        gateway.entries                                   # what it did, oldest first

`PaymentGateway(honours_keys=False)` performs whatever comes. `POST /charges | /refunds | /voids` performs, and
`GET /entries` is its own ledger; `?key=` and `?order=` narrow it down.

Alone, for a demo: `python -m tests.services.payments [--port 8322] [--ignore-keys] [--lose N]` prints its address.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.services.serving import Serving

KINDS = ("charges", "refunds", "voids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One movement of money.

    Attributes:
        kind: `charges`, `refunds` or `voids`.
        key: The idempotency key it came with; None if it came with none.
    """

    id: str
    kind: str
    key: str | None
    order: str
    cents: int


class PaymentGateway(Serving):
    """The gateway; runs in a thread of its own while it is entered as a context manager.

    Attributes:
        entries: What it did, oldest first.
        keys: The idempotency key of every request that came, refused and failed ones too.
    """

    def __init__(self, port: int = 0, *, honours_keys: bool = True) -> None:
        self.honours_keys = honours_keys
        self.entries: list[Moved] = []
        self.keys: list[str | None] = []
        self._failing: deque[tuple[int, dict[str, str]]] = deque()
        self._losing = 0
        self.arrived = threading.Event()
        routes = [Route(f"/{kind}", self._move, methods=["POST"]) for kind in KINDS]
        super().__init__(Starlette(routes=[*routes, Route("/entries", self._list)]), port)

    def fail(self, *statuses: int, retry_after: str | None = None) -> None:
        """Answer the next requests so, and do nothing."""
        headers = {} if retry_after is None else {"retry-after": retry_after}
        self._failing.extend((status, headers) for status in statuses)

    def lose(self, count: int) -> None:
        """Perform the next requests, and cut the connection instead of answering."""
        self._losing = count

    def of(self, order: str) -> list[Moved]:
        """What it did for one order, oldest first."""
        return [entry for entry in self.entries if entry.order == order]

    async def _move(self, request: Request) -> Response:
        key = request.headers.get("idempotency-key")
        self.keys.append(key)
        self.arrived.set()
        if self._failing:
            status, headers = self._failing.popleft()
            return JSONResponse({"error": "on demand"}, status, headers)
        asked = await request.json()
        known = next((one for one in self.entries if self.honours_keys and key is not None and one.key == key), None)
        if known is None:
            kind = request.url.path.strip("/")
            known = Moved(
                id=f"{kind}-{len(self.entries) + 1}", kind=kind, key=key, order=asked["order"], cents=asked["cents"]
            )
            self.entries.append(known)
        elif (known.order, known.cents) != (asked["order"], asked["cents"]):
            return JSONResponse({"error": "this key came with other arguments before"}, 422)
        if self._losing:
            self._losing -= 1
            return StreamingResponse(_cut())
        return JSONResponse(asdict(known), 201)

    async def _list(self, request: Request) -> Response:
        asked: dict[str, Any] = dict(request.query_params)
        found = [asdict(one) for one in self.entries]
        return JSONResponse([one for one in found if all(one[name] == value for name, value in asked.items())])


async def _cut() -> AsyncIterator[str]:
    yield ""
    raise ConnectionError("cut on demand")


def main() -> None:
    """Serve until interrupted; the first line on stdout is the address."""
    parser = argparse.ArgumentParser(description="A payment gateway for demos.")
    parser.add_argument("--port", type=int, default=0, help="a free one by default")
    parser.add_argument("--ignore-keys", action="store_true", help="perform a repeated request again")
    parser.add_argument("--lose", type=int, default=0, help="cut the connection after performing the first N requests")
    options = parser.parse_args()
    with PaymentGateway(options.port, honours_keys=not options.ignore_keys) as gateway:
        gateway.lose(options.lose)
        sys.stdout.write(f"{gateway.address}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
