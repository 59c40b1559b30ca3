"""How a tool says itself whether asking again can help: it raises `TryLater` or `Never`.

What it raises besides is classified by `refold.effects.failures.classify`.
"""

from __future__ import annotations

from pydantic import JsonValue

from refold.core.retry import Failure, FailureKind


class Verdict(Exception):
    """A failure that its author has classified. Raise `TryLater` or `Never`.

    Attributes:
        failure: The failure, as the task records it.
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class TryLater(Verdict):
    """The same call may succeed later: the task waits and asks again, as its retry policy says.

    Attributes:
        unsent: The tool is sure that nothing has happened yet. Without it a tool that is `at_most_once` is not
            asked again, since nobody knows what its first try did.
    """

    def __init__(
        self,
        message: str,
        *,
        after: float | None = None,
        type: str = "try_later",
        details: JsonValue = None,
        unsent: bool = False,
    ) -> None:
        """Say so.

        Args:
            message: One sentence for people, without secrets.
            after: Seconds to wait, if the other side said so.
            type: A short name, for programs.
            details: More, for programs.
            unsent: Nothing has happened yet, for sure.
        """
        self.unsent = unsent
        kind = FailureKind.TRANSIENT
        super().__init__(Failure(kind=kind, type=type, message=message, retry_after=after, details=details))


class Never(Verdict):
    """The same call fails again, however often it is made: the command fails at once."""

    def __init__(self, message: str, *, type: str = "never", details: JsonValue = None) -> None:
        """Say so.

        Args:
            message: One sentence for people, without secrets.
            type: A short name, for programs.
            details: More, for programs.
        """
        super().__init__(Failure(kind=FailureKind.PERMANENT, type=type, message=message, details=details))
