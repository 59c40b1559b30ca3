"""Who may use the page, as whom, and what each person may see and do.

A person comes in by one of four doors, the first that fits:

1. A header that a proxy in front sets, if the request comes from that proxy: it may pass credentials of its own on.
2. `Authorization: Bearer KEY` or `X-API-Key`, checked as the gateway checks them: for scripts.
3. The session: a signed cookie, which `POST signin` gives for a key or token.
4. Loopback, if it is open: whoever is on this machine acts under a name of their choice, as with `refold approve --as`.
   Nobody vouches for that name.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from refold.core.commands import AskApproval
from refold.core.gates import is_among
from refold.engine import EngineError
from refold.engine.arguments import takes
from refold.record import TaskRecord
from refold.web.hosts import LOOPBACK_NAMES, host_of, on_loopback, peer_of

SESSION_S = 12 * 3600
"""How long a session lasts, in seconds."""

COOKIE = "refold_page"
NAME_CHARS = 256
SHORTEST_SECRET = 32
PREFIX = "REFOLD_PAGE_"

Check = Callable[[str], Awaitable[str | None]]
"""The name of whoever has this key or token; None for an unknown one. `frame.Refused` answers in place of the page."""


class AccessError(EngineError):
    """A setting of the page is wrong, or opens it to everyone; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Whoever uses the page now.

    Attributes:
        name: The name that decisions are made in.
        proven: A key, a token or a proxy proved the name, so that the page vouches for it.
        sees_all: Sees every task; otherwise the person's own, and those with an open gate that lists the person.
        acts: May decide, answer, start and so on; otherwise the person only reads.
        payloads: Sees what messages, arguments, results and states hold.
        switches: May choose another name: on loopback.
    """

    name: str
    proven: bool = False
    sees_all: bool = False
    acts: bool = True
    payloads: bool = True
    switches: bool = False

    def sees(self, record: TaskRecord) -> bool:
        """Whether the person may see a task: as its owner, or as an approver of one of its open gates."""
        if self.runs(record):
            return True
        asks = (wait.ask for wait in record.waits)
        return any(isinstance(ask, AskApproval) and is_among(self.name, ask.policy.approvers) for ask in asks)

    def runs(self, record: TaskRecord) -> bool:
        """Whether a task that the person sees is theirs to answer and to change: an approver only decides at its gates,
        as at the gateway.
        """
        return self.sees_all or record.owner == self.name


@takes(AccessError)
@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the page. Names in a list may be `*`, for everybody.

    Attributes:
        check: Checks a key or token that somebody signs in with; None takes none.
        proxy_header: The header in which a proxy names the person; None trusts no proxy.
        proxies: The addresses of that proxy.
        loopback: The name in which people on this machine act, until they choose another; None asks them to sign in.
        see_all: Who sees every task. On loopback everybody does.
        read_only: Who may not change anything.
        no_payloads: Who may not see what tasks hold; such a person may not change anything either.
        hosts: Accepted host names; empty accepts loopback's if loopback is open, else any.
        secret: Signs sessions; the same for all processes that serve the page. Left out, sessions end with the process.
    """

    check: Check | None = None
    proxy_header: str | None = None
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    loopback: str | None = None
    see_all: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    no_payloads: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    async def person(self, request: HTTPConnection) -> Person | None:
        """Who sends a request; None for somebody who has to sign in first."""
        if proxied := self._proxied(request):
            return self.named(proxied, proven=True)
        if self.check is not None and (key := credentials(request.headers)) is not None:
            name = await self.check(key)
            return None if name is None else self.named(name, proven=True)
        session = self.read(request.cookies.get(COOKIE, ""), "session") or {}
        if session.get("proven"):
            return self.named(session["name"], proven=True)
        if self.loopback is not None and on_loopback(request.scope, request.headers):
            return self.named(session.get("name") or self.loopback, switches=True)
        return None

    def _proxied(self, request: HTTPConnection) -> str:
        """The name that the proxy in front gives the person; empty if it gives none."""
        if self.proxy_header is None or peer_of(request.scope) not in self.proxies:
            return ""
        given = request.headers.getlist(self.proxy_header)
        if len(given) != 1:
            return ""
        sent = given[0].encode("latin-1")  # as Starlette read it; proxies send names in UTF-8, old ones in Latin-1
        try:
            return as_name(sent.decode())
        except UnicodeDecodeError:
            return as_name(given[0])

    def encrypted(self, request: HTTPConnection) -> bool:
        """Whether the person's browser uses https: with this process, or with the proxy in front."""
        if request.url.scheme == "https":
            return True
        return peer_of(request.scope) in self.proxies and request.headers.get("x-forwarded-proto") == "https"

    def forged(self, request: HTTPConnection) -> bool:
        """Whether a page of another site may have sent a request that changes something.

        A browser says with `Sec-Fetch-Site` who sends a request; one that is too old for that says so with `Origin`. A
        request with neither comes from no browser, and passes only with a key or token of its own, which no page can
        add; behind a proxy that names the person, the proxy may have added it.

        Source: the algorithm of Go's `http.CrossOriginProtection`, but for what has neither header.
        """
        headers = request.headers
        if (site := headers.get("sec-fetch-site")) is not None:
            return site != "same-origin"
        if (origin := headers.get("origin")) is not None:
            return origin.partition("://")[2].lower() != headers.get("host", "").lower()
        return bool(self._proxied(request)) or credentials(headers) is None

    def named(self, name: str, *, proven: bool = False, switches: bool = False) -> Person:
        """A person of this name, with what the settings let them do."""
        payloads = not _in(name, self.no_payloads)
        return Person(
            name=name,
            proven=proven,
            sees_all=switches or _in(name, self.see_all),
            acts=payloads and not _in(name, self.read_only),
            payloads=payloads,
            switches=switches,
        )

    def signed(self, value: dict[str, Any], what: str, seconds: float = SESSION_S) -> str:
        """A value as the text of a cookie, valid for so long."""
        body = json.dumps({**value, "what": what, "until": time.time() + seconds}, ensure_ascii=False).encode()
        return f"{base64.urlsafe_b64encode(body).decode()}.{self._signature(body)}"

    def read(self, cookie: str, what: str) -> dict[str, Any] | None:
        """The value of a cookie; None if it was not signed here for this, or is over."""
        text, _, signature = cookie.partition(".")
        try:
            body = base64.urlsafe_b64decode(text)
        except ValueError:
            return None
        if not hmac.compare_digest(self._signature(body).encode(), signature.encode("utf-8", "surrogateescape")):
            return None
        value: dict[str, Any] = json.loads(body)
        return value if value["what"] == what and value["until"] > time.time() else None

    def _signature(self, body: bytes) -> str:
        return hmac.new(self.secret, body, sha256).hexdigest()

    def right_host(self, headers: Headers) -> bool:
        """Whether a request addresses this page, and not a name of somebody's who makes it resolve to this machine."""
        allowed = self.hosts or (LOOPBACK_NAMES if self.loopback is not None else ())
        given = headers.getlist("host")
        return not allowed or (len(given) == 1 and host_of(given[0]) in allowed)


def credentials(headers: Headers) -> str | None:
    """The key or token of a request, else None. `Basic` does not count: browsers add it by themselves."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def as_name(given: str) -> str:
    """A person's name, without spaces around it; empty if the text is no name."""
    name = given.strip()
    return name if len(name) <= NAME_CHARS and name.isprintable() else ""


def _in(name: str, names: tuple[str, ...]) -> bool:
    return name in names or "*" in names


@takes(AccessError)
def access_from_env(
    environ: Mapping[str, str] = os.environ,
    *,
    check: Check | None = None,
    loopback: str | None = None,
    hosts: tuple[str, ...] = (),
) -> Access:
    """Who may use the page, by `REFOLD_PAGE_…` as docs/page.md lists them, and by what the gateway knows.

    Raises:
        AccessError: A setting is wrong.
    """

    def words(name: str) -> tuple[str, ...]:
        return tuple(word for part in environ.get(PREFIX + name, "").split(",") if (word := part.strip()))

    header, secret = environ.get(f"{PREFIX}PROXY_HEADER", "").strip(), environ.get(f"{PREFIX}SECRET", "")
    if secret and len(secret) < SHORTEST_SECRET:
        raise AccessError(
            f"{PREFIX}SECRET is shorter than {SHORTEST_SECRET} characters; `openssl rand -hex 32` makes a good one"
        )
    more = {"secret": secret.encode()} if secret else {}
    return Access(
        check=check,
        proxy_header=header or None,
        proxies=words("PROXIES") or ("127.0.0.1", "::1"),
        loopback=None if header else loopback,
        see_all=words("SEE_ALL"),
        read_only=words("READ_ONLY"),
        no_payloads=words("NO_PAYLOADS"),
        hosts=hosts,
        **more,
    )
