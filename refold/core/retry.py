"""When a command that failed is tried again, and when it is not.

One owner for each kind of failure: what the worker's machine does is Temporal's affair, and never seen here; "try
later" is the task's, visible in its lifecycle; "never" fails at once. The question that tells the last two apart:
*would the outcome change with all inputs unchanged?* Source: S3.44 to S3.49.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import AfterValidator, JsonValue

from refold.core.values import Seconds, Text, Value, lean

LONGEST_WAIT_S = 30 * 24 * 3600.0
"""No wait before a retry is longer, whatever a policy or the other side says."""


LONGEST_PROBE_S = 1800.0
"""A dependency that is down is asked at least this often."""


class FailureKind(StrEnum):
    """Whether asking again can help."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    """Nobody knows whether the effect took place: a person must say, or say that it may be repeated."""


def _wait(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_WAIT_S) if seconds == seconds else 0.0


class Failure(Value):
    """Why a command has no result.

    Attributes:
        kind: Whether asking again can help.
        type: A short name: the exception's class, `http_503`, `worker_lost`.
        message: One sentence for people, without secrets or bodies.
        retry_after: Seconds the other side asked to wait, cut to thirty days; None where it said nothing.
        details: More, for programs.
    """

    kind: FailureKind
    type: str
    message: Text
    retry_after: Annotated[float, AfterValidator(_wait)] | None = lean()
    details: JsonValue = lean()


class RetryPolicy(Value):
    """How often, and how patiently, "try later" is tried again.

    Attributes:
        max_retries: Tries after the first one; 0 never tries again.
        base: Seconds before the first retry.
        factor: Each wait is this many times the one before.
        cap: No wait is longer than this, in seconds; a `retry_after` may be, up to thirty days.
        on_exhausted: When no retry is left: `fail` tells the skill, and fails the task if it does not care; `block`
            keeps the task until the dependency answers, probing it ever less often, or an operator says so.
        probe_s: Seconds before the first probe of a dependency that is down; twice as many before each next one.
        jitter: The share of each wait that is spread, 0 to 1. It is a hash of invocation id and attempt, so that
            a replay waits as long as the run did.
    """

    max_retries: Annotated[int, Ge(0)] = lean(3)
    base: Seconds = lean(1.0)
    factor: Annotated[float, Ge(1), Le(1e9)] = lean(2.0)
    cap: Seconds = lean(300.0)
    jitter: Annotated[float, Ge(0), Le(1)] = lean(0.0)
    on_exhausted: Literal["fail", "block"] = lean("fail")
    probe_s: Seconds = lean(30.0)

    def probe_delay(self, probe: int, retry_after: float | None = None) -> float:
        """Seconds to wait before probe number `probe` (1 is the first), at most half an hour or as long as asked."""
        wait = min(self.probe_s * 2 ** min(probe - 1, 30), LONGEST_PROBE_S)
        return float(min(max(wait, retry_after or 0.0), LONGEST_WAIT_S))

    def delay(self, retry: int, invocation_id: str, retry_after: float | None = None) -> float:
        """Seconds to wait before retry number `retry` (1 is the first): 1, 2, 4 … by default."""
        try:
            wait = min(self.cap, self.base * self.factor ** (retry - 1))
        except OverflowError:
            wait = self.cap
        if self.jitter:
            digest = hashlib.sha256(f"{invocation_id}#{retry}".encode()).digest()
            share = int.from_bytes(digest[:8], "big") / 2**64
            wait *= 1 - self.jitter * share
        return min(max(wait, retry_after or 0.0), LONGEST_WAIT_S)
