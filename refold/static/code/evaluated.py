"""What an expression stands for, as far as the code and the loaded module say so: literals, constants, classes.

Nothing is called: an expression that calls anything, or that names what only a running task has, is `UNKNOWN`.
"""

from __future__ import annotations

import ast
import builtins
import sys
from enum import EnumMeta
from types import ModuleType
from typing import Any, Final

from refold.static.code.module import imported_names
from refold.static.code.units import Unit


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
"""Only a running task knows."""

_TYPING = ("types", "typing", "typing_extensions")
"""Where the classes of `list[str]`, `Literal` and `Order | None` are."""

_PLAIN = (str, int, float, bool, type(None))


def value_of(node: ast.expr | None, unit: Unit) -> Any:
    """What an expression in a function of a loaded module stands for; `UNKNOWN` where that cannot be told."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=id):
            return UNKNOWN if id in _bound(unit) else _of_module(id, unit.module.name)
        case ast.Attribute(value=ast.Name(id=me), attr=attr) if me == unit.me and (cls := unit.owner) is not None:
            return _attribute(_of_module(cls.node.name, cls.module.name), attr)
        case ast.Attribute(value=base, attr=attr):
            return _attribute(value_of(base, unit), attr)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items):
            return _all([value_of(item, unit) for item in items], list)
        case ast.Tuple(elts=items):
            return _all([value_of(item, unit) for item in items], tuple)
        case ast.Set(elts=items):
            return _all([value_of(item, unit) for item in items], lambda known: _made(set, known))
        case ast.Dict(keys=keys, values=values):
            pairs = [(value_of(key, unit), value_of(value, unit)) for key, value in zip(keys, values, strict=True)]
            return _all([one for pair in pairs for one in pair], lambda _: _made(dict, pairs))
        case ast.Subscript() | ast.BinOp(op=ast.BitOr()):
            return _type(node, unit)
        case _:
            return UNKNOWN


def is_plain(value: Any) -> bool:
    """Whether a value is made of texts, numbers, lists and dicts alone."""
    match value:
        case list() | tuple() | set():
            return all(is_plain(one) for one in value)
        case dict():
            return all(is_plain(one) for pair in value.items() for one in pair)
        case _:
            return type(value) in _PLAIN


def _bound(unit: Unit) -> set[str]:
    """The names that the function itself binds: its parameters, and whatever it assigns or imports."""
    bound: set[str] = set()
    if isinstance(unit.node, ast.ClassDef):
        return bound
    for node in ast.walk(unit.node):
        match node:
            case ast.arg(arg=name):
                bound.add(name)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                bound.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.Import() | ast.ImportFrom():
                bound.update(imported_names(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node is not unit.node:
                bound.add(node.name)
            case _:
                pass
    return bound


def _of_module(name: str, module: str) -> Any:
    return vars(sys.modules.get(module, builtins)).get(name, vars(builtins).get(name, UNKNOWN))


def _attribute(base: Any, name: str) -> Any:
    # Of modules and classes alone: an object's attribute may be a property, which would run.
    return getattr(base, name, UNKNOWN) if isinstance(base, ModuleType | type | EnumMeta) else UNKNOWN


def _all(items: list[Any], make: Any) -> Any:
    return UNKNOWN if any(item is UNKNOWN for item in items) else make(items)


def _made(kind: type[set[Any] | dict[Any, Any]], items: list[Any]) -> Any:
    try:
        return kind(items)
    except TypeError:  # an item or a key that cannot be hashed
        return UNKNOWN


def _type(node: ast.expr, unit: Unit) -> Any:
    """`list[Order]`, `Order | None`."""
    match node:
        case ast.Subscript(value=base, slice=index):
            parts = (value_of(base, unit), value_of(index, unit))
        case ast.BinOp(left=left, right=right):
            parts = (value_of(left, unit), value_of(right, unit))
        case _:
            return UNKNOWN
    first, second = parts
    if second is UNKNOWN or not _makes_types(first):
        return UNKNOWN
    try:
        return first[second] if isinstance(node, ast.Subscript) else first | second
    except (TypeError, AttributeError, LookupError):
        return UNKNOWN


def _makes_types(value: Any) -> bool:
    # Of types alone, and of containers that may hold them: another object's `[]` and `|` run its own code.
    if isinstance(value, dict | list | tuple):
        return type(value) in (dict, list, tuple) and not is_plain(value)
    return value is None or isinstance(value, type) or type(value).__module__ in _TYPING
