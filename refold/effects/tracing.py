"""What an effect tells of itself to its span. Knows no tracing library: see `refold.temporal.tracing`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol


class Traced(Protocol):
    """The span of the effect that is being performed.

    Attributes:
        content: Whether the span may have keys, prompts and results.
    """

    content: bool

    @property
    def instrument(self) -> Any:
        """What pydantic-ai traces the request to the provider with."""

    def note(self, name: str, value: str | int | float | bool) -> None:
        """Add an attribute."""


TRACED: ContextVar[Traced | None] = ContextVar("refold_traced", default=None)


def note(name: str, value: str | int | float | bool) -> None:
    """Add an attribute to the effect's span, if it is traced."""
    if (traced := TRACED.get()) is not None:
        traced.note(name, value)


def note_content(name: str, value: str) -> None:
    """Add an attribute that has content, if the effect is traced with content."""
    if (traced := TRACED.get()) is not None and traced.content:
        traced.note(name, value)


def instrument() -> Any:
    """What pydantic-ai traces a request with; False if the effect is not traced."""
    traced = TRACED.get()
    return False if traced is None else traced.instrument
