"""The context of a call while it is served: its caller, its headers, and whether the caller is still connected."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.routes import DefaultServerCallContextBuilder
from a2a.utils.constants import VERSION_HEADER
from starlette.requests import Request

from refold.a2a.security.http_errors import is_rpc

T = TypeVar("T")

SKILL_PATH = "/{skill}/"
"""Where the gateway takes JSON-RPC for one skill."""

_REQUEST = "refold.request"

_MAJOR = re.compile(r"\s*v?0*(\d+)", re.IGNORECASE)


def major_version(version: str) -> str:
    """The major number of a version of A2A, as the SDK reads it: "1" of `1`, `1.0` and `v1.0.1`.

    Empty for a text that begins with no number. Callers that name no version at all are served as those of 0.3, or by
    gRPC as those of 1.0.
    """
    found = _MAJOR.match(version)
    return found[1] if found else ""


class Calls(DefaultServerCallContextBuilder):
    """Makes the contexts of calls, which hold the request."""

    def build(self, request: Request) -> ServerCallContext:
        """See `ServerCallContextBuilder.build`."""
        context = super().build(request)
        context.state[_REQUEST] = request
        headers = context.state["headers"]
        if VERSION_HEADER.lower() not in headers and (version := request.query_params.get(VERSION_HEADER)):
            headers[VERSION_HEADER.lower()] = version  # for clients that cannot set a header
        return context


def tenant_of(context: ServerCallContext) -> str:
    """The skill that a call is addressed to, by its tenant or by its path; empty if it is to none."""
    request = context.state.get(_REQUEST)
    by_path = request.path_params.get("skill", "") if isinstance(request, Request) else ""
    return context.tenant or by_path


async def status_asked_for(context: ServerCallContext) -> object:
    """The `status` of a list request as the caller wrote it: the SDK's parser drops unknown ones.

    None if the request has none, or did not come over HTTP.
    """
    request = context.state.get(_REQUEST)
    if not isinstance(request, Request):
        return None
    if not is_rpc(request.scope):
        return request.query_params.get("status")
    params = (await request.json()).get("params")
    return params.get("status") if isinstance(params, dict) else None


async def while_connected(work: Coroutine[Any, Any, T], context: ServerCallContext) -> T | None:
    """The result of `work`; None if the caller disconnects before.

    A disconnect stops the waiting only; the task continues.
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
    # The body has been read, so the next message can only be the disconnect.
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stopped(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
