"""Adds idempotency keys to the requests that a tool sends by the worker's HTTP client, and records their statuses.

The first writing request of a call (POST, PUT, PATCH, DELETE) carries `Idempotency-Key: {key}`, the second `{key}.2`,
and so on in the order of sending, the same on every attempt. Reads and redirects to another origin carry none; a
redirect within one origin counts as the same request. A header that the tool sets itself is kept, and the request is
counted. A request that a tool keeps, and sends in several calls, carries the key of each.

A tool that retries a request itself, for example after a 503, sends a new request with a new key. To mean the same
effect the tool passes the first request's header, or raises `TryLater` so that the task retries.
"""

from __future__ import annotations

from dataclasses import dataclass

from httpx2 import AsyncClient, Request, Response

from refold.effects.http.keys import nth
from refold.effects.invocation import SENT, Sent, serving

HEADER = "Idempotency-Key"
MUTATING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class _Keyed:
    sent: Sent
    key: str
    origin: tuple[str, str, int | None]
    given: bool


def keyed(client: AsyncClient) -> None:
    """Add the current tool call's keys to a client's requests; requests of model calls stay unchanged."""
    hooks = client.event_hooks
    client.event_hooks = {"request": [*hooks["request"], _sending], "response": [*hooks["response"], _answered]}


async def _sending(request: Request) -> None:
    before, invocation = request.extensions.get(SENT), serving()
    if isinstance(before, _Keyed):
        if invocation is not None and any(one is before.sent for one in invocation.sent or ()):
            _sent_again(request, before)
            return
        _forget(request, before)
    if invocation is None or invocation.sent is None or request.method not in MUTATING:
        return
    if invocation.over.is_set():
        raise RuntimeError(
            "the call has failed already, so this request is not sent; await all that a call starts before it ends"
        )
    sent = Sent(method=request.method)
    invocation.sent.append(sent)
    key = nth(invocation.idempotency_key, len(invocation.sent))
    given = HEADER in request.headers
    if not given:
        request.headers[HEADER] = key
    request.extensions[SENT] = _Keyed(sent=sent, key=key, origin=_origin(request), given=given)


def _sent_again(request: Request, before: _Keyed) -> None:
    before.sent.earlier.append(before.sent.status)
    before.sent.status = None
    if not before.given and (request.method not in MUTATING or _origin(request) != before.origin):
        request.headers.pop(HEADER, None)


def _forget(request: Request, before: _Keyed) -> None:
    """Make a request that a tool keeps, and has sent in an earlier call, a new one: the key is of that call."""
    del request.extensions[SENT]
    if not before.given and request.headers.get(HEADER) == before.key:
        del request.headers[HEADER]


async def _answered(response: Response) -> None:
    before = response.request.extensions.get(SENT)
    if isinstance(before, _Keyed):
        before.sent.status = response.status_code


def _origin(request: Request) -> tuple[str, str, int | None]:
    url = request.url
    return url.scheme, url.host, url.port
