"""How `expect=` types are written in commands, and found again; `codec.misfit` checks values against them.

A class at module level is written as `module:Name` (a few bytes, and the other side validates with pydantic); any other
type that pydantic knows (`list[int]`, a class inside a function) is written as its JSON schema.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from inspect import isawaitable
from typing import Any, TypeVar, get_args

from pydantic import JsonValue, PydanticUserError, TypeAdapter, ValidationError

from refold.core.errors import AWAIT, SkillError

T = TypeVar("T")
Schema = str | dict[str, JsonValue]

# CPython's Py_TPFLAGS_HEAPTYPE without Py_TPFLAGS_IMMUTABLETYPE: a class that takes attributes, not a built-in one.
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8


def per_type(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """A decorator for functions of a type, whose result is made once.

    The result is stored on the class itself, if the type is one, and is freed with the class: a workflow sandbox
    imports a skill's module, and makes its classes, once for each task.
    """
    name = f"__refold_{make.__name__}__"

    @lru_cache(maxsize=256)
    def made(kind: Any, written: str) -> T:
        return make(kind)

    @wraps(make)
    def cached(kind: Any) -> T:
        if isinstance(kind, type) and kind.__flags__ & (_HEAP | _IMMUTABLE) == _HEAP:
            found: T | None = vars(kind).get(name)
            if found is None:
                found = make(kind)
                setattr(kind, name, found)
            return found
        try:
            # `A | B == B | A`, but data is decoded as the first member that fits; the union's text keeps the order.
            return made(kind, repr(kind) if get_args(kind) else "")
        except TypeError:  # an unhashable annotation, such as Annotated[..., []]
            return make(kind)

    return cached


@per_type
def adapter(kind: Any) -> TypeAdapter[Any]:
    """The pydantic adapter of a type.

    Raises:
        PydanticUserError: pydantic does not know the type, or cannot yet; or it is a name.
    """
    if isinstance(kind, str):  # an expression to pydantic, which it would evaluate here
        raise PydanticUserError(f"{kind!r} is a text; give the type itself", code=None)
    return TypeAdapter(kind)


def schema_of(kind: Any) -> Schema | None:
    """The form of a type in a command; None for None (plain text).

    Raises:
        SkillError: pydantic does not know the type.
    """
    if kind is None or isinstance(kind, dict):
        return kind
    if isinstance(kind, str):
        if not all(kind.partition(":")):
            raise SkillError(f"expect={kind!r} names no type; give the type itself, or its name as `module:Name`")
        return kind
    reference = reference_of(kind)
    # Another process has another `__main__`.
    if reference is not None and not kind.__module__.startswith("__"):
        return reference
    with _told(kind):
        return adapter(kind).json_schema()


def reference_of(kind: Any) -> str | None:
    """`module:Name` of a class at module level; None for any other type.

    Raises:
        SkillError: pydantic does not know the class.
    """
    if not isinstance(kind, type) or resolve(reference := f"{kind.__module__}:{kind.__qualname__}") is not kind:
        return None
    with _told(kind):
        adapter(kind)
    return reference


@contextmanager
def _told(kind: Any) -> Iterator[None]:
    try:
        yield
    except PydanticUserError as error:
        raise SkillError(f"expect={kind!r} is not a type that pydantic can check: {first_line(error)}") from None


def resolve(schema: Any) -> Any:
    """The type that `schema` names or is; None where only its JSON schema is known, or its module is not loaded.

    Only modules that are loaded already are looked at: a name never makes code run.
    """
    if not isinstance(schema, str):
        return None if isinstance(schema, dict) else schema
    module, _, path = schema.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def fields_of(expected: Any) -> tuple[str, ...]:
    """The fields of an object type, in order, a `?` after those that may be left out.

    Empty for any other type, and for one that is not known here or has no JSON schema.

    Args:
        expected: The type or its `Schema`.
    """
    schema = expected if isinstance(expected, dict) else _schema_of_type(resolve(expected))
    required = schema.get("required", ())
    return tuple(name if name in required else f"{name}?" for name in schema.get("properties", ()))


@per_type
def _schema_of_type(kind: Any) -> dict[str, Any]:
    try:
        return adapter(kind).json_schema()
    except PydanticUserError:
        return {}


def problems(error: ValidationError) -> str:
    """pydantic's findings in one line, without the values: `decision: Input should be 'Approved' …`."""
    found = []
    for detail in error.errors(include_url=False, include_context=False):
        where = ".".join(str(step) for step in detail["loc"])
        said = f"{detail['msg']}; {AWAIT}" if isawaitable(detail["input"]) else detail["msg"]
        found.append(f"{where}: {said}" if where else said)
    return "; ".join(found)


def first_line(error: Exception) -> str:
    """The first sentence of an error that says more than people want to read."""
    return str(error).partition("\n")[0].partition(". ")[0]


def type_name(schema: Schema) -> str:
    """A type's name for people."""
    return schema.rpartition(":")[2] if isinstance(schema, str) else str(schema.get("title", "its JSON schema"))
