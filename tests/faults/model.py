"""A model over real HTTP that remembers each call, and can leave one unanswered until somebody asks again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tests.services.openai_server import OpenAIServer

T = TypeVar("T")

KEY = "idempotency-key"
PACE_S = 0.03
BEGINNING = 4
"""How many pieces of a stream are its beginning."""


class Model(OpenAIServer):
    """An OpenAI-compatible server that counts calls by their idempotency key.

    Attributes:
        asked: How often each call was asked, by its key.
        answered: How often each was answered, as far as the caller was there to hear it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self._lost: int | None = None
        self._times = 1
        self._hanging = 0

    def begin(self, *, lose: int | None = None, times: int = 1) -> None:
        """Forget everything, and leave the first requests of one call without an answer.

        Args:
            lose: Which call, counted from 1; None answers all.
            times: How many of its requests.
        """
        self.asked.clear()
        self.answered.clear()
        self._lost, self._times = lose, times

    async def hangs(self) -> bool:
        """Whether a request waits for an answer that will not come."""
        return self._hanging > 0

    async def _complete(self, request: Request) -> Response:
        key = request.headers[KEY]
        self.asked[key] += 1
        if len(self.asked) == self._lost and self.asked[key] <= self._times:
            await request.body()
            self._hanging += 1
            await request.receive()  # after the body, the one thing that can come is that the caller is gone
            self._hanging -= 1
            return Response(status_code=500)
        response = await super()._complete(request)
        self.answered[key] += 1
        return response


class Thoughtful(OpenAIServer):
    """A model that takes its time over each piece of an answer, so that it can be interrupted.

    Attributes:
        heard: Whether somebody has read how an answer begins; the model writes no more than that before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard: Callable[[], bool] = lambda: True

    async def _complete(self, request: Request) -> Response:
        response = await super()._complete(request)
        if isinstance(response, StreamingResponse):
            response.body_iterator = self._paced(response.body_iterator)
        return response

    async def _paced(self, pieces: AsyncIterable[T]) -> AsyncIterator[T]:
        written = 0
        async for piece in pieces:
            yield piece
            written += 1
            await asyncio.sleep(PACE_S)
            while written >= BEGINNING and not self.heard():  # noqa: ASYNC110 - whoever hears is in another thread
                await asyncio.sleep(PACE_S)
