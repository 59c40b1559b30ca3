"""Tells from their source what the functions of modules do with what modules hold: read it, change it or pass it on.

A list of tools or a dict of prices could be changed, and nobody changes it: it is a constant. Each function that names
a constant only reads it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any

_READING_METHODS = frozenset({
    "get", "items", "keys", "values", "index", "count", "copy", "union", "intersection", "difference",
    "symmetric_difference", "issubset", "issuperset", "isdisjoint",
})  # fmt: skip
_READING_BUILTINS = frozenset({
    "len", "sorted", "reversed", "enumerate", "tuple", "list", "dict", "set", "frozenset", "min", "max", "sum", "any",
    "all", "bool", "str", "repr",
})  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Uses:
    """What modules do with names, whatever stands under them: a local variable of the same name counts.

    Attributes:
        changed: The names that functions may change the value of, or pass it on.
        known: Whether the source of all modules is there. Else any name may be changed.
        setters: By module, the first function that sets an attribute of what is not its own.
    """

    changed: frozenset[str]
    known: bool
    setters: dict[str, str]

    def only_read(self, name: str) -> bool:
        """Whether functions only read what stands under this name."""
        return self.known and name not in self.changed


@dataclass(frozen=True, slots=True)
class _Source:
    """The uses in one module; `handed` are the names given to functions on import, each with the function's own."""

    changed: frozenset[str]
    handed: frozenset[tuple[str, str]]
    setter: str | None


def uses_of(modules: Iterable[ModuleType]) -> Uses:
    """What these modules do with names. A function that one of them defines may keep what it is given on import."""
    modules = list(modules)
    own = {module.__name__ for module in modules}
    read = {module.__name__: (module, source) for module in modules if (source := _read(module)) is not None}
    changed: set[str] = set()
    for module, source in read.values():
        changed |= source.changed
        changed |= {name for function, name in source.handed if _home(vars(module).get(function)) in own}
    setters = {name: source.setter for name, (_, source) in read.items() if source.setter is not None}
    return Uses(frozenset(changed), len(read) == len(own), setters)


def _home(value: object) -> str | None:
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)


def _read(module: ModuleType) -> _Source | None:
    loader: Any = getattr(module.__spec__, "loader", None)
    if isinstance(loader, ExtensionFileLoader):
        return _source("")  # no functions in Python
    try:
        source: str | None = loader.get_source(module.__name__) if hasattr(loader, "get_source") else None
        return None if source is None else _source(source)
    except (OSError, ImportError, SyntaxError, RecursionError, SystemError):  # the last: python/cpython#106905
        return None


@lru_cache(maxsize=1024)
def _source(source: str) -> _Source:
    tree = ast.parse(source)
    reading = _READING_BUILTINS - set(_bound(tree))
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    changed = {name for one in functions for node in _body(one) for name in _used(node, (), reading)}
    setter = next((name for name in _setters(tree, frozenset(), frozenset()) if name), None)
    return _Source(frozenset(changed), frozenset(_handed(tree)), setter)


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.stmt] | list[ast.expr]:
    """Without decorators and defaults, which run at definition."""
    return function.body if isinstance(function.body, list) else [function.body]


def _bound(tree: ast.AST) -> Iterator[str]:
    """Every name that code gives a meaning of its own, wherever."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name
            case ast.alias(name=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                pass


# --- what is read, and what is not


def _used(node: ast.AST, above: tuple[ast.AST, ...], reading: frozenset[str]) -> Iterator[str]:
    """The names that are used for anything but reading. A text counts as a name, because of `getattr`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if not (isinstance(node.ctx, ast.Load) and _reads(node, above, reading)):
                yield name
        case ast.Constant(value=str(name)):
            yield name
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _used(child, (node, *above[:1]), reading)


def _reads(node: ast.AST, above: tuple[ast.AST, ...], reading: frozenset[str]) -> bool:
    """Whether this use of a list, dict or set, amid these nodes, only reads it."""
    match above:
        case [ast.Attribute(attr=method) as got, ast.Call(func=called)]:
            return called is got and method in _READING_METHODS
        case (
            [ast.Subscript(value=read, ctx=ast.Load()), *_]
            | [ast.For(iter=read) | ast.AsyncFor(iter=read) | ast.comprehension(iter=read), *_]
            | [ast.If(test=read) | ast.While(test=read) | ast.IfExp(test=read) | ast.Assert(test=read), *_]
        ):
            return read is node
        case [ast.Call(func=ast.Name(id=function), args=given), *_]:
            return function in reading and given == [node]  # `max(HELD, x)` would pass it on
        case [ast.Dict(keys=keys, values=values), *_]:
            return any(key is None and value is node for key, value in zip(keys, values, strict=True))
        case [ast.keyword(arg=None) | ast.Starred(ctx=ast.Load()), *_]:
            return True  # its members are passed on
        case [ast.Compare() | ast.BinOp() | ast.FormattedValue() | ast.UnaryOp(op=ast.Not()), *_]:
            return True
        case _:
            return False


def _handed(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What functions and classes are given while the module is imported: their names, and those of what is given."""
    if isinstance(node, ast.Call) and (function := _root(node.func)) is not None:
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from ((function, one.id) for one in ast.walk(value) if isinstance(one, ast.Name))
    for field, child in ast.iter_fields(node):
        if not (isinstance(node, _FUNCTIONS) and field == "body"):
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.AST):
                    yield from _handed(one)


# --- attributes that are set


def _setters(node: ast.AST, bound: frozenset[str], shared: frozenset[str], where: str = "") -> Iterator[str]:
    """The functions that set attributes of what they have not made: of a module, a class, or the one object of a skill.

    Args:
        node: The code.
        bound: The names that the functions around it give a meaning.
        shared: Those of them that stand for a class or for a skill.
        where: The function.
    """
    match node:
        case ast.ClassDef():
            skill = any("skill" in ast.unparse(mark) for mark in node.decorator_list)
            for one in node.body:
                of_class = isinstance(one, ast.FunctionDef) and _has(one, "classmethod")
                of_skill = skill and getattr(one, "name", "__init__") != "__init__"  # it is made on import
                first = _first(one) if of_class or of_skill else frozenset[str]()
                yield from _setters(one, bound, first, f"{where}.{node.name}".lstrip("."))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            name = f"{where}.{getattr(node, 'name', 'lambda')}".lstrip(".")
            globals_ = {name for one in ast.walk(node) if isinstance(one, ast.Global) for name in one.names}
            inner = bound | ({name for one in ast.iter_child_nodes(node) for name in _bound(one)} - globals_)
            for part in _body(node):
                yield from _setters(part, inner, shared, name)
        case _:
            if where and _sets(node, bound - shared):
                yield where
            for child in ast.iter_child_nodes(node):
                yield from _setters(child, bound, shared, where)


def _sets(node: ast.AST, own: frozenset[str]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="setattr" | "delattr")):
            return True
        case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()):
            return _is_class(value) or _root(value) not in own
        case _:
            return False


def _is_class(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr="__class__") | ast.Call(func=ast.Name(id="type")):
            return True
        case ast.Attribute(value=value) | ast.Subscript(value=value):
            return _is_class(value)
        case _:
            return False


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _has(function: ast.FunctionDef, decorator: str) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == decorator for mark in function.decorator_list)


def _first(function: ast.AST) -> frozenset[str]:
    args = getattr(function, "args", None)
    return frozenset(one.arg for one in (*args.posonlyargs, *args.args)[:1]) if args is not None else frozenset()
