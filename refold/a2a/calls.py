"""What a call is known by while it is served: who made it, what its headers say, and whether somebody still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.routes import DefaultServerCallContextBuilder
from a2a.utils.constants import VERSION_HEADER
from starlette.requests import Request

T = TypeVar("T")

_REQUEST = "refold.request"


class Calls(DefaultServerCallContextBuilder):
    """Makes the contexts of calls; the request itself stays in them."""

    def build(self, request: Request) -> ServerCallContext:
        """See `ServerCallContextBuilder.build`."""
        context = super().build(request)
        context.state[_REQUEST] = request
        if version := request.query_params.get(VERSION_HEADER):  # which A2A allows where no header can be set
            context.state["headers"].setdefault(VERSION_HEADER.lower(), version)
        return context


async def status_asked_for(context: ServerCallContext) -> object:
    """The status by which a list is to be filtered, as the caller wrote it: reading a request leaves out unknown ones.

    None where it wrote none, or did not call over HTTP.
    """
    request = context.state.get(_REQUEST)
    if not isinstance(request, Request):
        return None
    if request.method == "GET":
        return request.query_params.get("status")
    params = (await request.json()).get("params")
    return params.get("status") if isinstance(params, dict) else None


async def while_connected(work: Coroutine[Any, Any, T], context: ServerCallContext) -> T | None:
    """What comes of waiting for something, or None once the caller has gone away: nobody waits any more.

    What was waited for goes on; only the waiting ends.
    """
    request = context.state.get(_REQUEST)
    if not isinstance(request, Request):
        return await work
    waiting = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        await _stopped(waiting, gone)


async def _gone(request: Request) -> None:
    # Its body has been read, so that the next thing to come is that the caller goes.
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stopped(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
