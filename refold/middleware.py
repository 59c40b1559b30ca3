"""The interfaces of middleware around a skill's model calls and tools.

The worker runs middleware once for each attempt of an effect, outside the workflow: clock, I/O and the event loop are
allowed. The task records the result that the middleware returns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTurn:
    """One attempt of a command, as middleware receives it.

    Attributes:
        command: `CallLlm` or `CallTool`; for a model call in a conversation `Recalled`, with `frame` and `shown`.
        task_id: The task.
        invocation_id: The command's id, the same on every attempt.
        attempt: 1, or more if workers were lost before.
        owner: The task's owner; None if it has none. Middleware that keeps anything keeps it for each owner apart.
    """

    command: Any
    task_id: str
    invocation_id: str
    attempt: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The next piece of a model's text; emitted while the task is watched."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The next piece of the arguments of a model's tool call, as JSON text; emitted while the task is watched."""

    number: int
    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class ProgressPiece:
    """What a running tool reports of its progress; emitted at most every 250 ms, the newest report only."""

    said: Any


class ActivityMiddleware(Protocol):
    """Middleware around performers: objects with a `kind`, `model` or `tool`, and `async stream(turn, emit)`.

    `stream` performs the command of an `ActivityTurn` and returns its result. Called again, it performs the command
    again, with the same idempotency keys. `emit` takes the `TextPiece` and `CallPiece` of a model's answer while the
    task is watched, and a tool's `ProgressPiece`.

    Attributes:
        steps: The kinds that it wraps.
    """

    @property
    def steps(self) -> Collection[str]:
        """The kinds that it wraps."""
        ...

    def wrap(self, step: Any) -> Any:
        """A performer that calls `step`, the next inner performer, and adds to it."""
        ...
