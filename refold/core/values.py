"""What every recorded value shares: frozen, closed, and small as JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from operator import eq, is_
from typing import Any, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Value(BaseModel):
    """A fact or a request: it never changes, and a misspelt field is an error.

    Two values with equal fields are equal, so tests compare them directly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @classmethod
    def trusted(cls, **fields: Any) -> Self:
        """A value whose fields are right by construction, unchecked: the fold's own.

        What pydantic's `model_construct` does, in a fifth of the time: a fold makes several for each event.
        """
        defaults, factories, every = _defaults(cls)
        filled = defaults.copy()
        filled.update(fields)
        for name, factory in factories:
            if name not in fields:
                filled[name] = factory()
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", filled)
        object.__setattr__(made, "__pydantic_fields_set__", every)
        object.__setattr__(made, "__pydantic_extra__", None)
        object.__setattr__(made, "__pydantic_private__", None)
        return made


@cache
def _defaults(cls: type[BaseModel]) -> tuple[dict[str, Any], list[tuple[str, Callable[[], Any]]], set[str]]:
    """Every field in its place, so that equal values are equal as JSON text too; how to make the others; their names.

    One set of names for all values, which are frozen: one for each would be a third of what a waiting task takes.
    """
    fields = cls.__pydantic_fields__
    factories = [(name, field.default_factory) for name, field in fields.items() if field.default_factory is not None]
    defaults = {name: field.default for name, field in fields.items()}
    return defaults, cast("list[tuple[str, Callable[[], Any]]]", factories), set(fields)


def lean(default: T | None = None, *, factory: Callable[[], T] | None = None, **kwargs: Any) -> Any:
    """A field that stays out of the JSON while it holds its default.

    Journals and activity inputs are written to history for ever; a default that is written each time is paid for
    each time. Reading it back gives the same value, so nothing is lost.
    """
    usual = factory() if factory is not None else default
    exclude = _equal_to(usual)
    if factory is not None:
        return Field(default_factory=factory, exclude_if=exclude, **kwargs)
    return Field(default=default, exclude_if=exclude, **kwargs)


def _equal_to(usual: Any) -> Callable[[Any], bool]:
    # Asked for each field of each value that is written, so without a function of Python's where it can be.
    if usual is None or usual is False:
        return partial(is_, usual)
    if usual == "":
        return partial(eq, usual)
    # Matched by type too: 0 equals False, and 1.0 equals 1.
    return lambda value: type(value) is type(usual) and value == usual
