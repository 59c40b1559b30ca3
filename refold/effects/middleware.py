"""Performs a skill's commands inside the skill's middleware; see `refold.middleware`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refold.middleware import ActivityMiddleware, ActivityTurn, CallPiece, TextPiece

if TYPE_CHECKING:
    from refold.effects.models.request import Show

Emit = Callable[[Any], None]
Perform = Callable[[Any, Emit], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Performer:
    kind: str
    perform: Perform

    async def stream(self, turn: ActivityTurn, emit: Emit) -> Any:
        return await self.perform(turn.command, emit)


class MiddlewareBySkill:
    """The middleware of each skill, by the skill's id."""

    def __init__(self, by_skill: Mapping[str, Sequence[ActivityMiddleware]] | None = None) -> None:
        self._by_skill = {skill: tuple(middleware) for skill, middleware in (by_skill or {}).items() if middleware}

    async def perform(self, skill: str, kind: str, turn: ActivityTurn, emit: Emit, perform: Perform) -> Any:
        """Perform a command inside its skill's middleware; the first one is outermost.

        Args:
            skill: The id of the skill that issued the command.
            kind: `model` or `tool`.
            turn: The command.
            emit: Takes a model's text, piece by piece.
            perform: Performs the command; the innermost call.
        """
        step: Any = _Performer(kind, perform)
        for one in reversed(self._by_skill.get(skill, ())):
            if kind in one.steps:
                step = one.wrap(step)
        return await step.stream(turn, emit)


class Emitting:
    """Emits the pieces of a model's answer as `TextPiece` and `CallPiece`."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def text(self, piece: str) -> None:
        """See `Show`."""
        self._emit(TextPiece(piece))

    def call(self, number: int, tool: str, piece: str) -> None:
        """See `Show`."""
        self._emit(CallPiece(number, tool, piece))


def shown(show: Show | None) -> Emit:
    """A function that passes emitted pieces on to `show`."""

    def emit(piece: Any) -> None:
        match piece:
            case TextPiece(text=text) if show is not None:
                show.text(text)
            case CallPiece(number=number, tool=tool, text=text) if show is not None:
                show.call(number, tool, text)
            case _:
                pass

    return emit
