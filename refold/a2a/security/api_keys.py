"""Authentication by API key: each key belongs to one caller, and only its hash is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from refold.a2a.security.principal import problem_with

HEADER = "x-api-key"
SHORTEST = 16
"""A shorter key could be guessed."""

_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_SENDABLE = re.compile(r"[!-~]+")
"""What every client can write into a header."""

_COMMENT = re.compile(r"(?<![^\s,])#.*")
"""A `#` behind another character is part of a key, since a key may hold any character that a header can carry."""


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The valid API keys.

    Attributes:
        callers: Name of the caller, by the SHA-256 of its key.
    """

    callers: Mapping[bytes, str]

    def caller(self, key: str) -> str | None:
        """The caller of a key; None for an unknown key. Takes the same time for both."""
        given = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        found = None
        for known, caller in self.callers.items():
            if hmac.compare_digest(known, given):
                found = caller
        return found


def api_keys(lines: str) -> ApiKeys:
    """Parse keys: `NAME=KEY` or `NAME=sha256:HASH`, one a line or separated by commas.

    Skips empty lines and comments: a `#` at the start of a line, or behind a space or comma, with the rest of its line.
    A caller may have several keys, so that it can replace one.

    Raises:
        ValueError: A line is not a key, a name is not allowed, a key is too short or cannot be sent, or two callers
            share one. The message never contains the key.
    """
    callers: dict[bytes, str] = {}
    for number, line in enumerate(re.split(r"[\n,]", _COMMENT.sub("", lines)), 1):
        if not line.strip():
            continue
        name, equals, key = line.partition("=")
        name, key = name.strip(), key.strip()
        if not equals:
            raise ValueError(f"key {number} is not NAME=KEY")
        if problem := problem_with(name):
            raise ValueError(f"the name of key {number} cannot be used: {problem}")
        if problem := _problem_with_key(key):
            raise ValueError(f"the key of {name!r} {problem}; `openssl rand -hex 32` makes a good one")
        digest = _digest(key)
        if callers.setdefault(digest, name) != name:
            raise ValueError(f"{name!r} and {callers[digest]!r} have the same key")
    return ApiKeys(callers)


def _problem_with_key(key: str) -> str:
    if key.startswith("sha256:"):
        return "" if _HASHED.fullmatch(key) else "is not `sha256:` with 64 hexadecimal digits behind"
    if len(key) < SHORTEST:
        return f"is shorter than {SHORTEST} characters"
    return "" if _SENDABLE.fullmatch(key) else "has characters that a header cannot carry: only ASCII, without spaces"


def _digest(key: str) -> bytes:
    hashed = _HASHED.fullmatch(key)
    return bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(key.encode()).digest()
