"""Tells which lists, dicts and sets of a module are constants: no function can change them or hand them on.

A list of tools or a dict of prices could be changed, and nobody changes it. The source says so: each function that
names it does nothing but read it. What runs while a module is imported is over before tasks share the module.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import ModuleType

_READING_METHODS = frozenset({
    "get", "items", "keys", "values", "index", "count", "copy", "union", "intersection", "difference",
    "symmetric_difference", "issubset", "issuperset", "isdisjoint",
})  # fmt: skip
_READING_BUILTINS = frozenset({
    "len", "sorted", "reversed", "enumerate", "tuple", "list", "dict", "set", "frozenset", "min", "max", "sum", "any",
    "all", "bool", "str", "repr",
})  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def only_read(name: str, modules: Iterable[ModuleType]) -> bool:
    """Whether functions of these modules only read what is held under this name, whosever name it is.

    False for a module whose source is not at hand.
    """
    return all((uses := _uses_of(module)) is not None and name not in uses for module in modules)


def _uses_of(module: ModuleType) -> frozenset[str] | None:
    try:
        return _other_uses(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, SystemError):  # python/cpython#106905 is a SystemError
        return None


@lru_cache(maxsize=256)
def _other_uses(source: str) -> frozenset[str]:
    """The names that functions use otherwise than to read what they hold; texts count as names, for `getattr`."""
    tree = ast.parse(source)
    reading = _READING_BUILTINS - set(_bound(tree))
    return frozenset(name for function in _functions(tree) for name in _used(function, (), reading))


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    """What functions consist of, without what runs when they are defined."""
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            yield from node.body if isinstance(node.body, list) else [node.body]


def _bound(tree: ast.AST) -> Iterator[str]:
    """Every name that the module gives a meaning of its own, wherever."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name
            case ast.alias(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case _:
                pass


def _used(node: ast.AST, above: tuple[ast.AST, ...], reading: frozenset[str]) -> Iterator[str]:
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
            return function in reading and given == [node]  # `max(HELD, x)` would hand it on
        case [ast.Dict(keys=keys, values=values), *_]:
            return any(key is None and value is node for key, value in zip(keys, values, strict=True))
        case [ast.keyword(arg=None) | ast.Starred(ctx=ast.Load()), *_]:
            return True  # its members are passed on
        case [ast.Compare() | ast.BinOp() | ast.FormattedValue() | ast.UnaryOp(op=ast.Not()), *_]:
            return True
        case _:
            return False
