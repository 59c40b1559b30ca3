"""Builds failures, and quotes in them what came from outside, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from refold.core.retry_policy import Failure, FailureKind

LONGEST_RETRY_AFTER_S = 86_400.0
"""The longest Retry-After that is honoured, in seconds; a longer one is cut to a day."""


def transient(type: str, message: str, wait: float | None = None, details: Any = None) -> Failure:
    """A failure that the task retries.

    Args:
        type: For programs.
        message: For people.
        wait: Seconds that the receiver asked for, cut to a day.
        details: More, for programs; JSON.
    """
    wait = None if wait is None else min(max(wait, 0.0), LONGEST_RETRY_AFTER_S)
    return Failure(kind=FailureKind.TRANSIENT, type=type, message=message, retry_after=wait, details=details)


def permanent(type: str, message: str, status: int | None = None) -> Failure:
    """A failure that the task does not retry.

    Args:
        type: For programs.
        message: For people.
        status: The HTTP status, added to the details; None without one.
    """
    details = None if status is None else {"status": status}
    return Failure(kind=FailureKind.PERMANENT, type=type, message=message, details=details)


_LONGEST_MESSAGE = 300
_LOOKED_AT = 2_000  # characters: an answer may be megabytes in one line, and a pattern takes their square
_SECRETS = (
    (re.compile(r"(\w[\w+.-]*://)(?:[^/\s@]*@)?([^/\s?#]+)[^\s'\")]*"), r"\1\2"),  # an address: its host is enough
    (re.compile(r"(?i)\b(header value:?) b?['\"].*"), r"\1 ***"),  # of h11, http.client and requests, which quote it
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), r"\1 ***"),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|xox[a-z])[-_][\w-]{8,}"), "***"),
    (
        re.compile(r"(?i)\b([\w-]*(?:key|token|secret|password|passwd))(['\"]?\s*[=:]\s*['\"]?)[^\s,;)'\"`]{4,}"),
        r"\1\2***",
    ),
)


def scrubbed(said: str) -> str:
    """The first line of a text that came from outside, at most 300 characters, with likely secrets removed."""
    text = next((line.strip() for line in said.splitlines() if line.strip()), "")[:_LOOKED_AT]
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def chain(error: BaseException, *, contexts: bool = True) -> Iterator[BaseException]:
    """An exception, then what it was raised from, or else (`contexts`) while what was handled; as a traceback shows
    them. Ends where an exception was raised from itself, or from a later one."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (one.__context__ if contexts and not one.__suppress_context__ else None)
