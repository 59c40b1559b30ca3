"""What a step sees of the state: the fields that it declares. The others are not there at all."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from refold.core.errors import ContractError, UnauthorizedReadError, UnauthorizedWriteError
from refold.core.schema import kept

_GUARD = "__refold_guard__"
_set = object.__setattr__


class Guard:
    """Watches over one view.

    Attributes:
        step: Who looks through it.
        lifecycle: The state that the step runs in.
        allowed: The fields that it may read.
        breach: The first thing that was tried and not allowed. It stops the task even where the step catches it.
    """

    __slots__ = ("allowed", "breach", "lifecycle", "step")

    def __init__(self, step: str, lifecycle: str, allowed: tuple[str, ...]) -> None:
        self.step, self.lifecycle, self.allowed = step, lifecycle, allowed
        self.breach: ContractError | None = None

    def reads(self, field: str) -> ContractError:
        """A field was read that is not allowed."""
        return self._noted(
            UnauthorizedReadError(
                self.step,
                self.lifecycle,
                field,
                "reads only what it declares",
                expected=f"one of: {', '.join(self.allowed) or 'none'}",
                actual=field,
            )
        )

    def writes(self, field: str) -> ContractError:
        """A field was changed in place."""
        return self._noted(
            UnauthorizedWriteError(
                self.step,
                self.lifecycle,
                field,
                "the state is frozen",
                expected=f"return StatePatch({field}=...)",
                actual="a change in place",
            )
        )

    def _noted(self, breach: ContractError) -> ContractError:
        self.breach = self.breach or breach
        return breach

    def check(self) -> None:
        """Raise what was tried and not allowed, if anything was."""
        if self.breach is not None:
            raise self.breach


def view_of(state: BaseModel, guard: Guard) -> Any:
    """A view of `state` that holds the guard's allowed fields.

    An instance of the state's class, so that its methods and properties are there; one that reads a field which is
    not allowed raises as the field does.
    """
    view = object.__new__(kept(type(state), "__refold_view__", _view_class))
    values = vars(state)
    _set(view, "__dict__", {name: values[name] for name in guard.allowed})
    _set(view, "__pydantic_fields_set__", set(guard.allowed))
    _set(view, "__pydantic_extra__", None)
    _set(view, "__pydantic_private__", None)
    _set(view, _GUARD, guard)
    return view


def _view_class(state: type[BaseModel]) -> type[BaseModel]:
    fields = frozenset(state.__pydantic_fields__)

    class View(state):  # type: ignore[misc, valid-type]  # a class made at run time
        __slots__ = (_GUARD,)
        model_config = ConfigDict(defer_build=True)

        # Asked only for what is not there.
        def __getattr__(self, name: str) -> Any:
            if name in fields:
                raise _guard_of(self).reads(name)
            return super().__getattr__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            raise _guard_of(self).writes(name)

        def __delattr__(self, name: str) -> None:
            raise _guard_of(self).writes(name)

    View.__name__, View.__qualname__, View.__module__ = state.__name__, state.__qualname__, state.__module__
    return View


def _guard_of(view: Any) -> Guard:
    try:
        guard: Guard = object.__getattribute__(view, _GUARD)
    except AttributeError:  # a copy that somebody made of the view: it holds no more than the view did
        return Guard("a copy of the state", "", tuple(vars(view)))
    return guard
