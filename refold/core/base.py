"""What every recorded value shares: frozen, closed, and small as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Value(BaseModel):
    """A fact or a request: it never changes, and a misspelt field is an error.

    Two values with equal fields are equal, so tests compare them directly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def lean(default: T | None = None, *, factory: Callable[[], T] | None = None, **kwargs: Any) -> Any:
    """A field that stays out of the JSON while it holds its default.

    Journals and activity inputs are written to history for ever; a default that is written each time is paid for
    each time. Reading it back gives the same value, so nothing is lost.
    """
    usual = factory() if factory is not None else default
    # Matched by type too: 0 equals False, and 1.0 equals 1.
    exclude = lambda value: type(value) is type(usual) and value == usual  # noqa: E731 - pydantic wants a callable
    if factory is not None:
        return Field(default_factory=factory, exclude_if=exclude, **kwargs)
    return Field(default=default, exclude_if=exclude, **kwargs)
