"""What a step changes in the state of its skill's contract."""

from __future__ import annotations

from typing import Any


class StatePatch:
    """Fields of the state and their new values: all that a step changes, and nothing of it happens till it is checked.

    A step returns it, alone or with `Transition.patch`. None is a value, too: it clears the field.

    Attributes:
        fields: The new values, by field.
    """

    __slots__ = ("fields",)

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatePatch) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]  # what it holds may change

    def __repr__(self) -> str:
        return f"StatePatch({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"
