"""The view of the state that a step gets: only the fields that the step declares, and read-only.

Rule 1: the view's guard notes every forbidden read or write, which stops the task even if the step catches the error.
Rule 2: a value inside a field, such as a list, can be changed in place; `rules.py` finds such changes after the step.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from refold.core.errors import ContractError, UnauthorizedReadError, UnauthorizedWriteError
from refold.core.schema import per_type

_GUARD = "__refold_guard__"
_set = object.__setattr__


class Guard:
    """Notes forbidden reads and writes of one view.

    Attributes:
        step: The step that the view is for.
        lifecycle: The lifecycle state in which the step runs.
        allowed: The fields that the step may read.
        breach: The error of the first forbidden read or write; None so far.
    """

    __slots__ = ("allowed", "breach", "lifecycle", "step")

    def __init__(self, step: str, lifecycle: str, allowed: tuple[str, ...]) -> None:
        self.step, self.lifecycle, self.allowed = step, lifecycle, allowed
        self.breach: ContractError | None = None

    def reads(self, field: str) -> ContractError:
        """Note the read of a field that the step may not read. Returns the error to raise."""
        allowed = f"one of: {', '.join(self.allowed) or 'none'}"
        return self._noted(UnauthorizedReadError, field, "reads only what it declares", allowed, field)

    def writes(self, field: str) -> ContractError:
        """Note a change of the view. Returns the error to raise."""
        way_out = f"return StatePatch({field}=...)"
        return self._noted(UnauthorizedWriteError, field, "the state is frozen", way_out, "a change in place")

    def _noted(self, kind: type[ContractError], field: str, rule: str, expected: str, actual: str) -> ContractError:
        breach = kind(self.step, self.lifecycle, field, rule, expected=expected, actual=actual)
        self.breach = self.breach or breach
        return breach

    def check(self) -> None:
        """Raise the breach, if there is one."""
        if self.breach is not None:
            raise self.breach


def view_of(state: BaseModel, guard: Guard) -> Any:
    """A view of `state` with the guard's allowed fields.

    The view is an instance of the state's class, with its methods and properties; a method that reads a forbidden field
    raises the guard's error.
    """
    view = object.__new__(_view_class(type(state)))
    values = vars(state)
    _set(view, "__dict__", {name: values[name] for name in guard.allowed})
    _set(view, "__pydantic_fields_set__", set(guard.allowed))
    _set(view, "__pydantic_extra__", None)
    _set(view, "__pydantic_private__", None)
    _set(view, _GUARD, guard)
    return view


@per_type
def _view_class(state: type[BaseModel]) -> type[BaseModel]:
    fields = frozenset(state.__pydantic_fields__)

    class View(state):  # type: ignore[misc, valid-type]  # a class made at run time
        __slots__ = (_GUARD,)
        model_config = ConfigDict(defer_build=True)

        # Python calls this for attributes that the view does not have.
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
    except AttributeError:  # a copy of the view, which has no guard and only the view's fields
        return Guard("a copy of the state", "", tuple(vars(view)))
    return guard
