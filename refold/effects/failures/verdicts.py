"""The exceptions by which a tool says itself whether a retry can help: `TryLater` and `Never`.

`refold.effects.failures.classify` classifies all other exceptions of a tool.
"""

from __future__ import annotations

from pydantic import JsonValue

from refold.core.errors import describe, shown
from refold.core.retry_policy import Failure, FailureKind

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
        after: float | None = None,
        type: str = "try_later",
        details: JsonValue = None,
        unsent: bool = False,
    ) -> None:
        """Create the failure.

        Args:
            message: One sentence for people, without secrets; of an exception its type and text.
            after: Seconds to wait before the retry, if the receiver gave a time.
            type: A short name, for programs.
            details: More, for programs.
            unsent: This attempt certainly had no effect.
        """
        self.unsent = unsent
        kind = FailureKind.TRANSIENT
        super().__init__(Failure(kind=kind, type=type, message=_said(message), retry_after=after, details=details))


class Never(Verdict):
    """No retry can succeed: the command fails at once. The call has had no effect."""

    def __init__(self, message: str | Exception, *, type: str = "never", details: JsonValue = None) -> None:
        """Create the failure.

        Args:
            message: One sentence for people, without secrets; of an exception its type and text.
            type: A short name, for programs.
            details: More, for programs.
        """
        super().__init__(Failure(kind=FailureKind.PERMANENT, type=type, message=_said(message), details=details))


def _said(message: object) -> str:
    """The sentence; never an error, which would take the place of what the tool says of its effect."""
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
