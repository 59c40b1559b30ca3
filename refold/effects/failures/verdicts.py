"""The exceptions by which a tool says itself whether a retry can help: `TryLater` and `Never`.

`refold.effects.failures.classify` classifies all other exceptions of a tool.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

from refold.core.errors import brief, describe, shown
from refold.core.retry_policy import Failure, FailureKind
from refold.core.values import shortened
from refold.effects.failures.network import retry_after

OTHERS_S = 600.0
"""For how long, in seconds, a command that no worker knows is offered to other workers before it fails."""


class Verdict(Exception):
    """The base of `TryLater` and `Never`, which carry a classified failure.

    Attributes:
        failure: The failure, as the task records it.
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class TryLater(Verdict):
    """The same call may succeed later: the task retries by its retry policy.

    Attributes:
        unsent: This attempt certainly had no effect. Without it the task does not retry an `at_most_once` tool, since
            the attempt may have had its effect.
    """

    unsent: bool = False  # also of a subclass whose constructor does not call this one

    def __init__(
        self,
        message: str | Exception,
        *,
        after: float | timedelta | str | None = None,
        type: str = "try_later",
        details: JsonValue = None,
        unsent: bool = False,
    ) -> None:
        """Create the failure.

        Args:
            message: One sentence for people, without secrets; of an exception its type and text.
            after: Seconds to wait before the retry, if the receiver gave a time; or its `Retry-After` as it came.
            type: A short name, for programs.
            details: More, for programs; what is no JSON is made so.
            unsent: This attempt certainly had no effect.
        """
        self.unsent = unsent
        super().__init__(_failure(FailureKind.TRANSIENT, type, message, details, _wait(after)))


class Never(Verdict):
    """No retry can succeed: the command fails at once. The call has had no effect."""

    def __init__(self, message: str | Exception, *, type: str = "never", details: JsonValue = None) -> None:
        """Create the failure.

        Args:
            message: One sentence for people, without secrets; of an exception its type and text.
            type: A short name, for programs.
            details: More, for programs; what is no JSON is made so.
        """
        super().__init__(_failure(FailureKind.PERMANENT, type, message, details))


# --- what a tool gives, whatever it is: an error would take the place of what it says of its effect


TYPE_CHARS = 200
"""How much of a failure's type is kept: the server refuses one of megabytes, and the effect would be repeated."""


_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


def _failure(kind: FailureKind, type: object, message: object, details: object, wait: float | None = None) -> Failure:
    named = shortened(type if isinstance(type, str) else brief(type), TYPE_CHARS)
    return Failure(kind=kind, type=named, message=_said(message), details=_json(details), retry_after=wait)


def _json(details: object) -> JsonValue:
    with suppress(ValueError):  # of what is JSON, half of a surrogate pair is replaced later
        return _JSON.validate_python(details)
    try:
        written: JsonValue = to_jsonable_python(details, fallback=shown)
    except (ValueError, RecursionError):
        return shown(details)
    return written


def _wait(after: object) -> float | None:
    if isinstance(after, timedelta):
        return after.total_seconds()
    if isinstance(after, str):
        return retry_after({"Retry-After": after})
    with suppress(TypeError, ValueError, OverflowError):
        return None if after is None else float(after)  # type: ignore[arg-type]  # whatever a tool gave; else an error
    return None


def _said(message: object) -> str:
    if isinstance(message, str):
        return message
    return describe(message) if isinstance(message, Exception) else shown(message)


class OutOfTime(TimeoutError):
    """A tool has taken longer than its own time limit. Whether it has had its effect is as with any `TimeoutError`."""

    def __init__(self, tool: str, timeout_s: float) -> None:
        super().__init__(
            f"tool {tool!r} did not end within its own timeout_s of {timeout_s:g} s; if it may take longer, give its "
            "`@tool` a larger timeout_s"
        )
