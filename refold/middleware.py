"""Middleware around a skill's model calls and tools, in the worker that runs them: what it gets, and how it is written.

It runs once for each attempt of an effect, with the worker's clock, memory and event loop; its result is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTurn:
    """One attempt to carry out a command, as middleware gets it.

    Attributes:
        command: `CallLlm`, `CallTool`; or, for a call in a conversation, all that the model is told, with `frame` and
            `shown`.
        task_id: The task.
        invocation_id: The command's own id, the same on every try.
        attempt: 1, or more if a worker was lost before this one.
    """

    command: Any
    task_id: str
    invocation_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Emitted while somebody watches: more of a model's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """Emitted while somebody watches: more of the arguments of a tool call that a model asks for, as JSON text."""

    number: int
    tool: str
    text: str


class Performer(Protocol):
    """What performs commands of a kind.

    Attributes:
        kind: `model` or `tool`.
    """

    kind: str

    async def stream(self, turn: ActivityTurn, emit: Callable[[Any], None]) -> Any:
        """Perform it.

        Args:
            turn: The command.
            emit: Takes a model's answer, `TextPiece` and `CallPiece`, where somebody watches.
        """
        ...


class ActivityMiddleware(Protocol):
    """Middleware around performers.

    Attributes:
        steps: The kinds that it wraps.
    """

    @property
    def steps(self) -> Collection[str]:
        """The kinds that it wraps."""
        ...

    def wrap(self, step: Any) -> Any:
        """A performer that does something around `step`."""
        ...
