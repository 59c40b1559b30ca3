"""The patch that a step returns to change the state of its skill's contract."""

from __future__ import annotations

from typing import Any


class StatePatch:
    """Fields of the state and their new values, checked against the contract before any of them is merged.

    A step returns a patch, alone or with `Transition.patch`. The value None clears a field.

    Attributes:
        fields: The new values, by field.
    """

    __slots__ = ("fields",)

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatePatch) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]  # the values may be mutable

    def __repr__(self) -> str:
        return f"StatePatch({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"
