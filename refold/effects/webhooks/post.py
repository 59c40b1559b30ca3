"""Posts one update to a webhook: the headers and signature it carries, and how the receiver's answer is read.

| answer                                          | means                                                   |
| ----------------------------------------------- | ------------------------------------------------------- |
| 2xx                                             | the update is delivered                                 |
| 410 Gone                                        | the receiver wants no more updates: the webhook ends    |
| anything else, a timeout, a refused address     | retry, after the answer's Retry-After if it has one     |
| none, since the webhook has changed meanwhile   | nothing was sent; ask what it is now                    |
| none, since too many other names are resolved   | the same: it is no failure of this receiver             |

Redirects are not followed: only the address that was checked is called.

Each post has `webhook-id`, the same on every attempt, and `webhook-timestamp`. With a secret it has
`webhook-signature` as in Standard Webhooks, which covers both headers and the body. The secret is the receiver's own
(scheme `StandardWebhooks`), else the operator's (`REFOLD_WEBHOOK_SECRET`). A setting may hold several secrets separated
by spaces, each of which signs, so that a secret can be rotated.

Source: A2A specification 1.0, section 4.3.3; Standard Webhooks 1.0.0; RFC 9110 section 10.2.3.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from typing import Any, Literal, Self

import httpx2
from standardwebhooks import Webhook as Signer

from refold.core.errors import DefinitionError, InputRejected
from refold.effects.failures.classify import classify
from refold.effects.failures.network import phrase, retry_after
from refold.effects.webhooks.resolving import NoTurn, while_waiting
from refold.effects.webhooks.ssrf import AddressRefused, Screen, ScreenedTransport, target
from refold.effects.webhooks.turns import Turns
from refold.webhooks import Webhook

SECRET_ENV = "REFOLD_WEBHOOK_SECRET"
TOKEN_HEADER = "X-A2A-Notification-Token"
OWN_SECRET = "standardwebhooks"

PATIENCE_S = 15.0
"""The time limit of one post in seconds, from the name's resolution to the answer; without the waits for its turn and
for the name's, and without the time in which the post asks whether it is still wanted."""

ANSWER_S = 1.0
"""How long an answer is read whose status is known, in seconds; the connection of a longer one is closed, too."""

ANSWER_BYTES = 64 * 1024
"""The most bytes read of an answer; after a longer answer the connection is closed instead of reused."""

GONE = 410

_A_SECRET = "`whsec_` and 24 to 64 bytes as base64, with the letters `+` and `/`, not `-` and `_`"
_MAKE_ONE = """python -c "import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())\""""
_VISIBLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_LONGEST = {"id": 256, "token": 4_096, "credentials": 8_192}
# The turns limit the connections in use: a post that waits for one would spend its receiver's time.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a post.

    Attributes:
        kind: The row of the module's table.
        why: The host and the status, for people; nothing secret.
        wait_s: The receiver's Retry-After, in seconds; None without one.
    """

    kind: Literal["taken", "gone", "later", "unsent"]
    why: str = ""
    wait_s: float | None = None


Wanted = Callable[[], Awaitable[bool]]
"""Whether a post is to be sent still."""


class _Unwanted(Exception):
    """The webhook has changed while its post connected."""


class Poster:
    """Posts updates: one client for all webhooks of a process. Close it with `aclose`."""

    def __init__(self, screen: Screen, secrets: Sequence[str] = ()) -> None:
        """Create the HTTP client.

        Args:
            screen: Decides which addresses may be called.
            secrets: The secrets, as `whsec_…`, that sign posts to a webhook without a secret of its own.
        """
        self.screen = screen
        self._signers = tuple(Signer(secret) for secret in secrets)
        self._turns = Turns()
        self._http = httpx2.AsyncClient(
            transport=ScreenedTransport(screen, limits=_LIMITS),
            timeout=PATIENCE_S,
            headers={"user-agent": f"refold/{version('refold')}"},
            follow_redirects=False,
            trust_env=False,
            # No cookie is kept: all webhooks share this client.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    @classmethod
    def from_env(cls, *, loopback: bool = False) -> Self:
        """The poster that the settings describe: `REFOLD_WEBHOOK_SECRET`, and those of the screen.

        Raises:
            DefinitionError: A setting cannot be read.
        """
        secrets = os.environ.get(SECRET_ENV, "").split()
        if not all(map(_is_secret, secrets)):
            said = f"a secret is {_A_SECRET}; {_MAKE_ONE} makes one"
            raise DefinitionError(SECRET_ENV, [said], what="setting")
        return cls(Screen.from_env(loopback=loopback), secrets)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def check(self, webhook: Webhook) -> None:
        """Check the fields and the address of a webhook; raises as `refold.webhooks.Webhooks.check`."""
        for name, longest in _LONGEST.items():
            if len(getattr(webhook, name)) > longest:
                raise InputRejected(f"a webhook's {name} has at most {longest:,} characters")
        for name in ("token", "credentials"):
            if (value := getattr(webhook, name)) and not _VISIBLE.fullmatch(value):
                raise InputRejected(f"a webhook's {name} goes into a header: visible ASCII characters only")
        if webhook.scheme and not _SCHEME.fullmatch(webhook.scheme):
            raise InputRejected("a webhook's authentication scheme is one word, for example Bearer")
        if webhook.scheme.lower() == OWN_SECRET and not _is_secret(webhook.credentials):
            raise InputRejected(
                f"the credentials of a webhook whose scheme is StandardWebhooks are a secret to sign with: {_A_SECRET}"
            )
        if webhook.scheme.lower() != OWN_SECRET and _is_secret(webhook.credentials):
            raise InputRejected(
                "credentials that are `whsec_…` are a secret to sign with, which is never sent: "
                f"their scheme is StandardWebhooks, not {webhook.scheme!r}"
            )
        await self.screen.check(webhook.url)

    async def post(self, webhook: Webhook, *, id: str, body: bytes, wanted: Wanted | None = None) -> Answer:
        """Post one update.

        Args:
            webhook: The receiver's address and authentication.
            id: The update's id; ASCII, the same on every attempt.
            body: The update as JSON.
            wanted: Whether it is to be posted still; asked where other posts had to end first, which may take minutes,
                and where the post had to connect, which may take seconds. Its errors are raised.
        """
        host = _host(webhook)
        try:
            async with self._turns.of(host) as waited:
                if waited and wanted is not None and not await wanted():
                    return Answer(kind="unsent")
                async with asyncio.timeout(PATIENCE_S) as limit:
                    extensions = {} if wanted is None else {"trace": _asking(wanted, limit)}
                    with while_waiting(partial(_stopped, limit)):
                        status, headers = await self._post(webhook, self._headers(webhook, id, body), body, extensions)
        except (_Unwanted, NoTurn):
            return Answer(kind="unsent")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, AddressRefused) as error:
            return Answer(kind="later", why=_why(error, webhook))
        said = f"{host} answered {phrase(status)}"
        if 200 <= status < 300:
            return Answer(kind="taken", why=said)
        return Answer(kind="gone" if status == GONE else "later", why=said, wait_s=retry_after(headers))

    async def _post(
        self, webhook: Webhook, headers: dict[str, str], body: bytes, extensions: dict[str, Any]
    ) -> tuple[int, httpx2.Headers]:
        async with self._http.stream(
            "POST", webhook.url, content=body, headers=headers, extensions=extensions
        ) as response:
            read = 0
            # The status is the answer: what comes after it is read for the sake of the connection alone.
            with contextlib.suppress(TimeoutError, httpx2.HTTPError):
                async with asyncio.timeout(ANSWER_S):
                    # Raw bytes, since a compressed answer could decode to many more.
                    async for piece in response.aiter_raw():
                        read += len(piece)
                        if read > ANSWER_BYTES:
                            break
            return response.status_code, response.headers

    def _headers(self, webhook: Webhook, id: str, body: bytes) -> dict[str, str]:
        at = datetime.now(UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(int(at.timestamp())),
        }
        if webhook.token:
            headers[TOKEN_HEADER] = webhook.token
        signers = self._signers
        if webhook.scheme.lower() == OWN_SECRET:
            signers = (Signer(webhook.credentials),)
        elif webhook.scheme and webhook.credentials:
            headers["authorization"] = f"{webhook.scheme} {webhook.credentials}"
        if signers:
            headers["webhook-signature"] = " ".join(signer.sign(id, at, body.decode()) for signer in signers)
        return headers


def _asking(wanted: Wanted, limit: asyncio.Timeout) -> Callable[[str, object], Coroutine[None, None, None]]:
    """A request's `trace`, which raises `_Unwanted` on a new connection before anything is sent. The post's time limit
    does not run while `wanted` is asked.

    Source: httpx, request extensions.
    """
    connects = False

    async def trace(event: str, _info: object) -> None:
        nonlocal connects
        if event == "connection.connect_tcp.started":
            connects = True
        elif event == "http11.send_request_headers.started" and connects:
            with _stopped(limit):
                if not await wanted():
                    raise _Unwanted

    return trace


@contextlib.contextmanager
def _stopped(limit: asyncio.Timeout) -> Iterator[None]:
    """A time limit does not run during the block; afterwards it has left what it had before."""
    clock, until = asyncio.get_running_loop().time, limit.when()
    assert until is not None, "a post has a time limit"
    left_s = until - clock()
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(clock() + left_s)


def _is_secret(text: str) -> bool:
    said = text.removeprefix("whsec_")
    try:
        raw = base64.b64decode(said + "=" * (-len(said) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return text.startswith("whsec_") and 24 <= len(raw) <= 64


def _why(error: Exception, webhook: Webhook) -> str:
    if isinstance(error, AddressRefused):
        return str(error)
    host, failure = _host(webhook), classify(error)
    return failure.message if host in failure.message else f"{host}: {failure.message}"


def _host(webhook: Webhook) -> str:
    try:
        return target(webhook.url)[0]
    except AddressRefused:
        return "the receiver"
