"""The one HTTP client of a worker: a pool of connections that model calls and tools share.

The client is httpx2, the successor of httpx with the same interface, because the OpenAI and Anthropic SDKs and
pydantic-ai have moved to it: they accept an httpx client only with a deprecation warning, until their next major
version. Exceptions of httpx are classified too, for tools that bring a client of their own.

Timeouts and limits are those of `pydantic_ai.models.create_async_httpx2_client`. The client is created here because
pydantic-ai takes about a second to load.
"""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2
from httpx2 import AsyncClient as HttpClient

from refold.core.errors import DefinitionError
from refold.effects.http.certificates import trusted
from refold.effects.http.sending import keyed

__all__ = ["HttpClient", "open_client"]

CONNECT_S, ANSWER_S = 5.0, 600.0
_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)


def open_client() -> HttpClient:
    """A new client; close it with `aclose()`. Proxies and certificates come from the environment.

    It keeps no cookies: calls for several owners share it, and one owner's session must not serve another. A tool's
    writing requests carry the tool's idempotency key. The read timeout is 10 minutes, since a model may think for
    minutes before its first byte; the connect timeout is 5 seconds.

    Raises:
        DefinitionError: A setting of the proxies or certificates cannot be used.
    """
    timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S)
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    hooks = {"request": [_connect_soon]}
    try:
        authorities = trusted()
    except OSError as error:  # also ssl.SSLError
        problem = f"the certificate authorities that they name cannot be read: {error.strerror or error}"
        raise DefinitionError("SSL_CERT_FILE, SSL_CERT_DIR", [problem], what="settings") from None
    try:
        client = HttpClient(verify=authorities, timeout=timeout, limits=_LIMITS, event_hooks=hooks, cookies=no_cookies)
    except (ValueError, ImportError, httpx2.InvalidURL):  # they quote the address, which may have a password
        raise DefinitionError("HTTP_PROXY, HTTPS_PROXY, ALL_PROXY", [_NO_PROXY], what="settings") from None
    keyed(client)
    return client


_NO_PROXY = (
    "one of them is no address of a proxy that can be used; set http://HOST:PORT or https://HOST:PORT, or, with the "
    "package socksio installed, socks5://HOST:PORT"
)


async def _connect_soon(request: httpx2.Request) -> None:
    """Cap the connect timeout of a request whose timeout is a single number of seconds.

    A timeout with different parts was chosen part by part, and stays unchanged.
    """
    asked: dict[str, float | None] = request.extensions.get("timeout") or {}
    if len(set(asked.values())) != 1:
        return
    seconds = asked["connect"]
    caps = {"connect": CONNECT_S, "pool": ANSWER_S}
    capped = {part: cap if seconds is None else min(seconds, cap) for part, cap in caps.items()}
    request.extensions = {**request.extensions, "timeout": {**asked, **capped}}
