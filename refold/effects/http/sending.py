"""Idempotency keys on the requests that a tool sends by the worker's HTTP client, and what became of these requests.

The first request of a call that may change something (POST, PUT, PATCH, DELETE) carries `Idempotency-Key: {key}`, the
second `{key}.2`, and so on in the order in which they are sent, on every try alike. Reads carry none, redirects to
another origin neither; a redirect within one origin is the same request. A header of the tool's own stays as it is, and
the request counts all the same.

A tool that sends a request again by itself, after a 503 say, sends another request with another key: it passes the
first one's header to mean the same effect, or leaves the repetition to the task by raising `TryLater`.
"""

from __future__ import annotations

from dataclasses import dataclass

from httpx2 import AsyncClient, Request, Response

from refold.effects.http.keys import nth
from refold.effects.invocation import Sent, serving

HEADER = "Idempotency-Key"
MUTATING = frozenset({"POST", "PUT", "PATCH", "DELETE"})

_SENT = "refold.sent"  # the name of a request's extension; a redirect inherits it


@dataclass(frozen=True, slots=True)
class _Keyed:
    sent: Sent
    key: str
    origin: tuple[str, str, int | None]
    given: bool


def keyed(client: AsyncClient) -> None:
    """Let a client's requests carry the keys of the call they are sent for; those of model calls stay as they are."""
    hooks = client.event_hooks
    client.event_hooks = {"request": [*hooks["request"], _sending], "response": [*hooks["response"], _answered]}


async def _sending(request: Request) -> None:
    before = request.extensions.get(_SENT)
    if isinstance(before, _Keyed):
        _redirected(request, before)
        return
    invocation = serving()
    if invocation is None or invocation.sent is None or request.method not in MUTATING:
        return
    sent = Sent(method=request.method)
    invocation.sent.append(sent)
    key = nth(invocation.idempotency_key, len(invocation.sent))
    given = HEADER in request.headers
    if not given:
        request.headers[HEADER] = key
    request.extensions[_SENT] = _Keyed(sent=sent, key=key, origin=_origin(request), given=given)


def _redirected(request: Request, before: _Keyed) -> None:
    if not before.given and (request.method not in MUTATING or _origin(request) != before.origin):
        request.headers.pop(HEADER, None)


async def _answered(response: Response) -> None:
    before = response.request.extensions.get(_SENT)
    if isinstance(before, _Keyed):
        before.sent.status = response.status_code


def _origin(request: Request) -> tuple[str, str, int | None]:
    url = request.url
    return url.scheme, url.host, url.port
