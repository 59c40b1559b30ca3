"""An issuer's keys, fetched from its address (JWKS): cached, and fetched again for an unknown key id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, OctKey
from pydantic_core import from_json

from refold.a2a.security.tokens import KeysUnavailable
from refold.seen.logs import logger
from refold.web.hosts import is_loopback

FRESH_S = 600.0
"""Seconds for which keys are cached; a key that the issuer revokes stays valid for so long."""

PAUSE_S = 30.0
"""Minimum seconds between two fetches, whatever key ids callers send, and the maximum that one takes."""

TIMEOUT_S = 5.0
LARGEST = 1024 * 1024  # maximum bytes of a key set

log = logger("refold.a2a")


class KeySet:
    """The keys at an address.

    If they cannot be fetched, the last fetched ones remain valid.

    Args:
        url: The address.
        fetch: Gets the document at an address; for tests.
        clock: Seconds, monotonic; for tests.
    """

    def __init__(
        self, url: str, *, fetch: Callable[[str], Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if problem := problem_with_url(url):
            raise ValueError(problem)
        self.url = url
        self._fetch = fetch or fetched
        self._clock = clock
        self._keys: tuple[Key, ...] = ()
        self._kept_at: float | None = None
        self._asked_at: float | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> Sequence[Key]:
        """The keys with this id; all keys if the token names none."""
        if self._lacks(kid) or (self._stale() and not self._renewing()):  # one call fetches; the others use stale keys
            await self._renewed()
        if self._kept_at is None:
            raise KeysUnavailable
        return self._keys if kid is None else self._named(kid)

    def _lacks(self, kid: str | None) -> bool:
        return self._kept_at is None or (kid is not None and not self._named(kid))

    def _stale(self) -> bool:
        return self._kept_at is not None and self._clock() - self._kept_at > FRESH_S

    def _named(self, kid: str) -> Sequence[Key]:
        return [key for key in self._keys if key.get("kid") == kid]

    def _renewing(self) -> bool:
        return self._renewal is not None and not self._renewal.done()

    async def _renewed(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew())
        await asyncio.shield(self._renewal)  # the call that began it may be canceled, and others wait for the keys

    async def _renew(self) -> None:
        now = self._clock()
        if self._asked_at is not None and now - self._asked_at < PAUSE_S:
            return
        self._asked_at = now
        try:
            async with asyncio.timeout(PAUSE_S):
                self._keys = _read(await self._fetch(self.url))
        except (httpx2.HTTPError, ValueError, JoseError, TimeoutError) as error:
            log.warning("key_set_unavailable", url=self.url, reason=str(error) or type(error).__name__)
        else:
            self._kept_at = now


async def fetched(url: str) -> Any:
    """Get the JSON document at an address.

    Raises:
        httpx2.HTTPError: The request failed.
        ValueError: The document is too large, or not JSON.
    """
    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http, http.stream("GET", url) as response:
        response.raise_for_status()
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > LARGEST:
                raise ValueError(f"the key set is larger than {LARGEST} bytes")
    return from_json(body)


def _read(document: Any) -> tuple[Key, ...]:
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("the key set has no list `keys`")
    keys = []
    for one in listed:
        try:
            key = JWKRegistry.import_key(one)
        except (JoseError, ValueError, TypeError, KeyError):
            continue  # a key of an unknown kind is skipped
        if not isinstance(key, OctKey):  # anyone can read the set, so a secret in it is worthless
            keys.append(key)
    return tuple(keys)


def problem_with_url(url: str) -> str | None:
    """Why keys cannot be fetched from this address; None if they can."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return None
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return None
    return f"{url!r} is not an https address; http is taken on loopback alone"
