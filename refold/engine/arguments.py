"""What a program gives to a public function, checked by the function's own annotations.

Rule 1: only types and bounds are checked here; what else must hold is for the function to say.
Rule 2: nothing is converted: the function gets what its caller gave.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from refold.core.errors import DefinitionError, InputRejected, shown
from refold.core.values import text

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class Within:
    """The bounds of a number, in its annotation."""

    least: float
    most: float = float("inf")


Count = Annotated[int, Within(1)]
"""How many of something."""

_SAY_MORE = {"skill", "skills", "content", "address", "answers", "codec", "durability"}
"""Parameters whose own checks know what the caller meant to give, unless their type is one of `_PLAIN`."""

_PLAIN = (str | None, bool)


def takes(refuse: Callable[[str], Exception] = InputRejected) -> Callable[[F], F]:
    """Let a function, or a class as it is made, refuse arguments that do not fit its annotations, before anything else.

    Args:
        refuse: Makes the error of what came and what is expected.
    """

    def decorated(function: F) -> F:
        if isinstance(function, type):
            made: Any = function
            made.__init__ = takes(refuse)(made.__init__)
            return function
        check = _check_of(function, refuse)
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                check(args, kwargs)
                return await function(*args, **kwargs)

            return cast(F, awaited)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return function(*args, **kwargs)

        return cast(F, called)

    return decorated


def methods_take(refuse: Callable[[str], Exception] = InputRejected) -> Callable[[C], C]:
    """As `takes`, for each public method that a class defines."""

    def decorated(cls: C) -> C:
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, takes(refuse)(method))
        return cls

    return decorated


def defining(name: str, what: str) -> Callable[[str], Exception]:
    """The refusal of what a program sets up with."""
    return lambda said: DefinitionError(name, [said], what=what)


def _check_of(
    function: Callable[..., Any], refuse: Callable[[str], Exception]
) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    """What checks the arguments of a function's call."""
    signature = inspect.signature(function)
    single = {one.name for one in signature.parameters.values() if one.kind not in _ANY_NUMBER}
    hints = cache(lambda: get_type_hints(function, include_extras=True))  # at the first call all names are there

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return  # a name that is none, or that is missing: Python itself says which
        for name, value in given.items():
            texts = value if isinstance(value, list | tuple) else (value,)
            if refuse is InputRejected and any(isinstance(one, str) and text(one) is not one for one in texts):
                raise refuse(f"{name} is no UTF-8 text; got {shown(value)}")
            hint = hints().get(name, Any)
            said_here = name in single and (name not in _SAY_MORE or hint in _PLAIN)
            if said_here and not _fits(value, hint):
                raise refuse(f"{name} is {_said(hint)}; got {shown(value)}{_way_out(hint, value)}")

    return check


def _parted(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation's kind and what it holds; where it says a tuple of any length, a list will do."""
    origin, inside = get_origin(hint), get_args(hint)
    return (Sequence if origin is tuple and Ellipsis in inside else origin), inside


def _fits(value: object, hint: Any) -> bool:
    origin, inside = _parted(hint)
    if origin is Annotated:
        return _fits(value, inside[0]) and all(one.least <= cast(Any, value) <= one.most for one in _bounds(hint))
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is Literal:
        return value in inside
    hint = origin or hint
    if hint in (Sequence, Iterable, Collection):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            return False
        return not isinstance(value, Sequence) or all(_fits(one, inside[0]) for one in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool) and value == value  # unlike NaN
    if hint is Any or not isinstance(hint, type):
        return True
    if getattr(hint, "_is_protocol", False):
        wanted = (name for name in vars(hint) if not name.startswith("_") or name == "__call__")
        return all(hasattr(value, name) for name in wanted)
    if isinstance(value, datetime) and hint is datetime:
        return value.tzinfo is not None
    return isinstance(value, hint) or (issubclass(hint, Enum) and isinstance(value, str))


def _bounds(hint: Any) -> Iterator[Within]:
    return (one for one in get_args(hint)[1:] if isinstance(one, Within))


_WORDS: Mapping[Any, str] = {
    str: "a text",
    bytes: "bytes",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    NoneType: "None",
    Sequence: "a list",
    Iterable: "a list",
    Collection: "a list",
    tuple: "a tuple",
    Mapping: "a dict",
    Callable: "a function",
    timedelta: "a timedelta",
    datetime: "a datetime with a time zone",
}
_WAYS_OUT = {str: "str(...)", timedelta: "timedelta(seconds=...)", datetime: "datetime(..., tzinfo=UTC)"}


def _said(hint: Any) -> str:
    """An annotation in words."""
    origin, inside = _parted(hint)
    if origin is Annotated:
        return _said(inside[0]) + "".join(map(_bounded, _bounds(hint)))
    if origin in (Union, UnionType):
        return " or ".join(map(_said, inside))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    kind = origin or hint
    words = _WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"
    if words == "a list" and inside[0] is not Any:
        one = _said(inside[0]).removeprefix("a ")
        return f"{words} of {one}s"
    return words


def _bounded(by: Within) -> str:
    return f", {by.least:g} or more" if by.most == float("inf") else f", {by.least:g} to {by.most:g}"


def _way_out(hint: Any, value: object) -> str:
    either = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    lists = [one for one in either if _WORDS.get(_parted(one)[0]) == "a list"]
    if isinstance(value, str) and lists:
        return "; write (...,)" if get_origin(lists[0]) is tuple else "; write [...]"
    kinds = set(either) - {NoneType}
    way = _WAYS_OUT.get(kinds.pop()) if len(kinds) == 1 and value is not None else None
    return f"; write {way}" if way else ""
