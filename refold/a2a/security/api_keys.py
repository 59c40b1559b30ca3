"""Callers by API key: each key is one caller's, and only its hash is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from refold.a2a.security.principal import problem_with

HEADER = "x-api-key"
SHORTEST = 16
"""A key that can be guessed is none."""

_HASHED = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The keys that count.

    Attributes:
        callers: Name of the caller, by the SHA-256 of its key.
    """

    callers: Mapping[bytes, str]

    def caller(self, key: str) -> str | None:
        """Whose key it is; None where it is nobody's. Takes as long for the one as for the other."""
        given = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        found = None
        for known, caller in self.callers.items():
            if hmac.compare_digest(known, given):
                found = caller
        return found


def api_keys(lines: str) -> ApiKeys:
    """Keys as they are written down: `NAME=KEY` or `NAME=sha256:HASH`, one a line or between commas.

    Empty lines and those that begin with `#` say nothing. A caller may have several keys, to change them one by one.

    Raises:
        ValueError: A line is something else, a name cannot be one, a key is too short, or two callers share one. The
            message never has the key.
    """
    callers: dict[bytes, str] = {}
    for number, line in enumerate(re.split(r"[\n,]", lines), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, key = line.partition("=")
        name, key = name.strip(), key.strip()
        if not equals:
            raise ValueError(f"key {number} is not NAME=KEY")
        if problem := problem_with(name):
            raise ValueError(f"the name of key {number} cannot be used: {problem}")
        digest = _digest(key)
        if digest is None:
            raise ValueError(
                f"the key of {name!r} is shorter than {SHORTEST} characters; `openssl rand -hex 32` makes a good one"
            )
        if callers.setdefault(digest, name) != name:
            raise ValueError(f"{name!r} and {callers[digest]!r} have the same key")
    return ApiKeys(callers)


def _digest(key: str) -> bytes | None:
    if hashed := _HASHED.fullmatch(key):
        return bytes.fromhex(hashed[1])
    return hashlib.sha256(key.encode()).digest() if len(key) >= SHORTEST else None
