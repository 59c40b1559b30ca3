"""Retry policies and kinds of failure: how often a command is retried, and after which wait.

`fold/failures.py` decides whether a failed command is retried. Temporal retries when a worker crashes, which the task
never sees; the task retries transient failures; permanent ones fail at once. A failure is transient if *the outcome
could change with all inputs unchanged*. Source: S3.44 to S3.49.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import AfterValidator, JsonValue

from refold.core.values import Names, Seconds, Text, Value, lean

LONGEST_WAIT_S = 30 * 24 * 3600.0
"""The longest wait before a retry, in seconds; longer waits of policies and `retry_after` are cut to it."""

LONGEST_PROBE_S = 1800.0
"""The longest wait between two probes of a dependency that is down, in seconds, unless `retry_after` is longer."""

NO_TOOL, NO_ACTIVITY, ANOTHER_RELEASE = "unknown_tool", "unknown_activity", "another_release"
NOT_READABLE = "not_readable_here"
LEFT = (NO_TOOL, NO_ACTIVITY, ANOTHER_RELEASE, NOT_READABLE)
"""The types of the failures of a worker that cannot perform an effect, though another one may: it has no such tool or
activity, another release sent it, or it has no key for it, or not its storage."""


class FailureKind(StrEnum):
    """Whether a retry can help."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    """It is not known whether the effect took place: see `RetryPolicy.on_unknown`."""


def _wait(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_WAIT_S) if seconds == seconds else 0.0


class Failure(Value):
    """Why a command has no result.

    Attributes:
        kind: Whether a retry can help.
        type: A short name: the exception's class, `http_503`, `worker_lost`.
        message: One sentence for people, without secrets or bodies.
        retry_after: Seconds that the called service asked to wait, cut to thirty days; None if it did not ask.
        details: More, for programs.
        again_s: The workers failed, not the effect: for so many seconds the task blocks and sends the command again at
            growing intervals, before the failure counts. If transient: an outage; without any policy, it blocks.
    """

    kind: FailureKind
    type: str
    message: Text
    retry_after: Annotated[float, AfterValidator(_wait)] | None = lean()
    details: JsonValue = lean()
    again_s: Annotated[float, AfterValidator(_wait)] = lean(0.0)

    def without_details(self, message: str) -> Failure:
        """It in other words, where its own cannot be sent. It stays of its kind: nobody may take an outcome that is
        unknown for an effect that has not taken place."""
        return self.model_copy(update={"message": message, "details": None})


class RetryPolicy(Value):
    """How often a transient failure is retried, and after which waits.

    Attributes:
        max_retries: Attempts after the first one; 0 never retries.
        base: Seconds before the first retry.
        factor: Each wait is this many times the one before.
        cap: No wait is longer than this, in seconds; a `retry_after` may be, up to thirty days.
        on_exhausted: When no retry is left: `fail` delivers the failure to the skill, and fails the task if the skill
            does not catch it; `block` blocks the task until a probe succeeds or an operator decides.
        on_unknown: When it stays unknown whether the effect took place: `ask` blocks the task until a person decides;
            `fail` delivers the failure to the skill; `repeat` sends the command again, without end. An effect that
            must not be repeated is then looked up by its probe, not repeated; without a probe, or if no worker has the
            tool any more or can read the call, a person decides.
        fallback_on: Types of permanent failures after which a call with several models asks the next one.
        probe_s: Seconds before the first probe of a dependency that is down, or of a command whose workers failed
            (`Failure.again_s`); twice as many before each next one.
        jitter: The share of each wait that is spread, 0 to 1. It is a hash of invocation id and attempt, so that
            a replay waits as long as the run did.
    """

    max_retries: Annotated[int, Ge(0)] = lean(3)
    base: Seconds = lean(1.0)
    factor: Annotated[float, Ge(1), Le(1e9)] = lean(2.0)
    cap: Seconds = lean(300.0)
    jitter: Annotated[float, Ge(0), Le(1)] = lean(0.0)
    on_exhausted: Literal["fail", "block"] = lean("fail")
    on_unknown: Literal["ask", "fail", "repeat"] = lean("ask")
    fallback_on: Names = lean(("quota_exceeded",))
    probe_s: Seconds = lean(30.0)

    def probe_delay(self, probe: int, retry_after: float | None = None) -> float:
        """Seconds to wait before probe number `probe` (1 is the first), at most half an hour or as long as asked."""
        wait = min(self.probe_s * 2 ** min(probe - 1, 30), LONGEST_PROBE_S)
        return float(min(max(wait, retry_after or 0.0), LONGEST_WAIT_S))

    def probes_for(self, seconds: float) -> int:
        """How many probes follow one another, by `probe_delay`, until so many seconds have passed; 0 without pauses."""
        waited, probes = 0.0, 0
        while self.probe_s > 0 and waited < seconds:
            probes += 1
            waited += self.probe_delay(probes)
        return probes

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
