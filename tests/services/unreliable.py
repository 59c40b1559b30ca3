"""A shop that, now and then, refuses, dawdles, or does what it is asked and then says that it did not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.services.shop import Shop

RECOGNISED = {"ship"}
"""Kinds of payment whose key this gateway recognises; every other one is made as often as it is asked for."""


class UnreliableShop(Shop):
    """A shop in trouble.

    Attributes:
        trouble_share: The share of requests that meet trouble, 0 to 1.
        answers: Where trouble is drawn from.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.trouble_share = 0.0
        self.answers = random.Random(seed)

    async def _find(self, request: Request) -> Response:
        if self.answers.random() < self.trouble_share:
            return JSONResponse({"error": "busy"}, 503)
        return await super()._find(request)

    async def _pay(self, request: Request) -> Response:
        self.honours_keys = (await request.json())["kind"] in RECOGNISED
        if self.answers.random() >= self.trouble_share:
            return await super()._pay(request)
        return await self.answers.choice([_refuses, _dawdles, _breaks_off, _lies])(request, super()._pay)


Pay = Callable[[Request], Awaitable[Response]]


async def _refuses(request: Request, pay: Pay) -> Response:
    return JSONResponse({"error": "busy"}, 503)


async def _dawdles(request: Request, pay: Pay) -> Response:
    answer = await pay(request)
    await asyncio.sleep(1.5)
    return answer


async def _breaks_off(request: Request, pay: Pay) -> Response:
    await pay(request)

    async def half() -> AsyncIterator[bytes]:
        yield b'{"payment_id": '
        raise ConnectionError("the shop hangs up")

    return StreamingResponse(half(), 201)


async def _lies(request: Request, pay: Pay) -> Response:
    await pay(request)
    return JSONResponse({"error": "something went wrong"}, 500)
