"""An application that says who called it, behind the guard; and tokens of an issuer of the tests' own."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2
from joserfc import jws
from joserfc.jwk import Key, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from refold.a2a.security import Security, guards
from refold.a2a.security.guard import PUBLIC
from refold.a2a.security.tokens import TokenRules
from refold.engine import Engine
from refold.testing import FakeEngine

ISSUER = "https://issuer.example.org"
AUDIENCE = "https://agent.example.org"
ADA_KEY = "ada-0123456789abcdef"
BOB_KEY = "bob-0123456789abcdef"
HERE = ("127.0.0.1", 50_000)
ELSEWHERE = ("203.0.113.7", 50_000)

RSA = RSAKey.generate_key(2048, {"kid": "one"})


class IssuerKeys:
    """An issuer's keys, at hand."""

    def __init__(self, *keys: Key) -> None:
        self.keys = keys

    async def find(self, kid: str | None) -> Sequence[Key]:
        return [key for key in self.keys if kid in (None, key.kid)]


class BrokenKeys:
    """Keys whose look-up fails in a way that nobody foresaw."""

    async def find(self, kid: str | None) -> Sequence[Key]:
        raise RuntimeError("the password is hunter2")


BROKEN = TokenRules(keys=BrokenKeys(), issuer=ISSUER, audience=(AUDIENCE,))


def tokens(*keys: Key, **settings: Any) -> TokenRules:
    """Tokens of the issuer count."""
    return TokenRules(keys=IssuerKeys(*(keys or (RSA,))), issuer=ISSUER, audience=(AUDIENCE,), **settings)


def token(key: Key = RSA, alg: str = "RS256", *, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token of ada's, good for an hour; a claim that is None is left out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 3600}
    said = {name: value for name, value in (usual | claims).items() if value is not None}
    full = {"alg": alg, "kid": key.kid} | (header or {})
    shown = {name: value for name, value in full.items() if value is not None}
    return jws.serialize_compact(shown, json.dumps(said), key, [alg])


async def _echo(request: Request) -> JSONResponse:
    body = await request.body()
    if body == b"fail":
        raise RuntimeError("the password is hunter2")
    return JSONResponse({"caller": request.user.name, "known": request.user.is_authenticated, "bytes": len(body)})


def app(security: Security, engine: Engine | None = None, *, url: str = "") -> Starlette:
    """The application behind the guard."""
    routes = [
        Route("/", _echo, methods=["GET", "POST", "DELETE"]),
        Route("/.well-known/agent-card.json", _echo),
    ]
    ping = (engine or FakeEngine()).ping
    return Starlette(routes=routes, middleware=guards(security, ping, url=url, public=PUBLIC))


def client(
    security: Security,
    *,
    at: tuple[str, int] = HERE,
    base_url: str = "http://127.0.0.1:9000",
    engine: Engine | None = None,
) -> httpx2.AsyncClient:
    """A client of the application, that calls from an address."""
    transport = httpx2.ASGITransport(app=app(security, engine), client=at, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=base_url)


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    """A body whose length is not said beforehand."""
    for part in parts:
        yield part
