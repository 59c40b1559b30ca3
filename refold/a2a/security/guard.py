"""The checks that every request passes before it reaches the gateway.

In this order: host, origin, caller, rate, body.
"""

from __future__ import annotations

import re
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refold.a2a.security import bodies
from refold.a2a.security.admission import Admission
from refold.a2a.security.api_keys import HEADER
from refold.a2a.security.health import LIVE, READY, Health, Ping
from refold.a2a.security.host_and_origin import check_host, check_origin
from refold.a2a.security.http_errors import Refused, broken
from refold.a2a.security.principal import Principal
from refold.a2a.security.settings import Security
from refold.callbacks.address import PATH as CALLBACKS
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count, observe, recording
from refold.web.callbacks import BODY_LIMIT_BYTES, without_token
from refold.web.hosts import LOOPBACK_NAMES, address_of

PUBLIC = re.compile(rf"(/[A-Za-z0-9_.-]+)?/\.well-known/(agent-card|agent|jwks)\.json|{CALLBACKS}/[^/]+")
"""The gateway's paths that need no authentication: a client reads from a card how to authenticate, and who has a
callback's address may call it."""

CLIENT_HEADERS = (
    *(
        "Authorization",
        HEADER,
        "Content-Type",
        "A2A-Version",
        "A2A-Extensions",
        "Idempotency-Key",
        "Last-Event-ID",
        "X-Namespace",
    ),
)
"""Headers that web pages of other origins may send; the last one is of Temporal's web UI."""

log = logger("refold.a2a")


def guards(
    security: Security,
    ping: Ping,
    *,
    url: str = "",
    admission: Admission | None = None,
    public: re.Pattern[str] | None = None,
) -> list[Middleware]:
    """The middleware in front of a gateway, outermost first.

    The caller is `request.user`, a `Principal`. If the application in which the gateway is mounted has already set an
    authenticated `request.user`, the gateway uses that caller.

    Args:
        security: Who may call.
        ping: Asked by the health check; raises an `EngineError` if the gateway cannot work now.
        url: The gateway's address: its host is one of the accepted host names.
        admission: Of another binding, which counts the same calls; None makes one.
        public: The application's paths that need no authentication, such as `PUBLIC`; None for none.
    """
    hosts = _hosts(security, url)
    guard = Middleware(Guard, security=security, health=Health(ping), hosts=hosts, admission=admission, public=public)
    if not security.origins:
        return [guard]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=security.origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=CLIENT_HEADERS,
        expose_headers=("WWW-Authenticate", "Retry-After"),
    )
    return [cors, guard]


def _hosts(security: Security, url: str) -> tuple[str, ...]:
    if security.hosts:
        return tuple(host.lower() for host in security.hosts)
    if security.anonymous is None:
        return ()  # a web page has no key or token, so it is refused by whatever name it calls
    return (*LOOPBACK_NAMES, *filter(None, [urlsplit(url).hostname]))


class Guard:
    """Passes allowed requests on, and answers all others.

    Args:
        app: The application behind it.
        security: Who may call.
        health: Answers health checks.
        hosts: Accepted host names; empty accepts any.
        admission: Knows callers and counts calls; None makes one.
        public: See `guards`.
    """

    def __init__(
        self,
        app: ASGIApp,
        security: Security,
        health: Health,
        hosts: tuple[str, ...] = (),
        admission: Admission | None = None,
        public: re.Pattern[str] | None = None,
    ) -> None:
        self.app = app
        self.security = security
        self.health = health
        self.hosts = hosts
        self.admission = admission or Admission(security)
        self.public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in (LIVE, READY):
            await (await self.health.answer(path))(scope, receive, send)
            return
        await self._serve(path, scope, receive, _counted(send))

    async def _admit(self, path: str, scope: Scope, receive: Receive) -> Receive:
        headers = Headers(scope=scope)
        anyone = self.public is not None and self.public.fullmatch(path) is not None
        is_callback = anyone and path.startswith(f"{CALLBACKS}/")
        if self.hosts and not is_callback:  # workers alone know a callback's host, and no page knows its token
            by_address = self.security.open_to_all and not self.security.hosts
            check_host(headers, self.hosts, self.security.prefix, by_address=by_address)
        check_origin(scope, headers, self.security.origins, self.security.prefix)
        scope["user"] = await self.admission.caller(scope, headers, anyone=anyone)
        if scope["method"] not in bodies.WITH_BODY:
            return receive
        return await (self._body_of_anyone(path, scope, receive) if anyone else self._body(scope, receive))

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        security = self.security
        body = await bodies.read(scope, receive, most=security.body_bytes, seconds=security.body_seconds)
        bodies.check(body, depth=security.depth, values=security.values)
        return bodies.again(body, receive)

    async def _body_of_anyone(self, path: str, scope: Scope, receive: Receive) -> Receive:
        """The body for a public path, not parsed: a callback checks the address first. Other public paths take none."""
        if not path.startswith(f"{CALLBACKS}/"):
            return bodies.again(b"", receive)
        security = self.security
        most = min(security.body_bytes, BODY_LIMIT_BYTES)
        return bodies.again(await bodies.read(scope, receive, most=most, seconds=security.body_seconds), receive)

    async def _serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_and_tell(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            receive = await self._admit(path, scope, receive)
            await self.app(scope, receive, send_and_tell)
        except Refused as refused:
            log.info(
                "call_refused",
                status=refused.status,
                path=without_token(path),
                address=address_of(scope),
                reason=refused.message,
            )
            await refused.response(scope)(scope, receive, send)
        except Exception as error:
            internal = broken(error, path=without_token(scope["path"]))
            if begun:  # the response has begun, so the connection can only be cut
                raise
            await internal.response(scope)(scope, receive, send)


def _counted(send: Send) -> Send:
    """The same, counting the answer as it begins."""
    if not recording():
        return send
    came = time.monotonic()

    async def counting(message: Message) -> None:
        if message["type"] == "http.response.start":
            count(metrics.CALLS, f"{message['status'] // 100}xx")
            observe(metrics.CALL_SECONDS, time.monotonic() - came)
        await send(message)

    return counting


def known_caller(request: Request) -> str | None:
    """The name of the caller; None for an anonymous one."""
    user = request.scope.get("user")
    return user.name if isinstance(user, Principal) and user.known else None
