"""Finds, in the source of modules, what their functions do with values of the modules: read, change or pass them on.

A list of tools or a dict of prices could be changed. If each function that names it only reads it, it is a constant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.machinery import ExtensionFileLoader
from opcode import opmap
from types import CodeType, ModuleType
from typing import Any

_READING_METHODS = frozenset({
    "get", "items", "keys", "values", "index", "count", "copy", "union", "intersection", "difference",
    "symmetric_difference", "issubset", "issuperset", "isdisjoint",
})  # fmt: skip
_READING_BUILTINS = frozenset({
    "len", "sorted", "reversed", "tuple", "list", "dict", "set", "frozenset", "min", "max", "sum", "any", "all", "bool",
    "str", "repr", "iter",
})  # fmt: skip
_READING_EACH = frozenset({"enumerate", "zip", "isinstance"})
"""Builtins that read each of their arguments."""

_OF_CLASS = frozenset({"__new__", "__class_getitem__"})
_MAKING = frozenset({"__init__", "__post_init__", "__new__", "__setattr__", "__delattr__"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SETTERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})
_SETTING = (opmap["STORE_ATTR"], opmap["DELETE_ATTR"])


class Uses:
    """What the functions of some modules do with each name; a local variable of the same name counts, too.

    Args:
        modules: All modules whose functions may reach one another's names.
    """

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._modules = {module.__name__: module for module in modules}

    @cached_property
    def _sources(self) -> dict[str, str | None]:
        return {name: _source_of(module) for name, module in self._modules.items()}

    def only_read(self, name: str) -> bool:
        """Whether functions only read the value of this name; False if the source of a module is missing.

        False, too, if the value is passed to a function of these modules on import: the function may keep it.
        """
        for module, source in self._sources.items():
            if source is None:
                return False
            if name not in source:
                continue
            read = _read(source)
            if read is None or name in read.changed:
                return False
            names = vars(self._modules[module])
            if any(given == name and _home(names.get(to)) in self._modules for to, given in read.handed):
                return False
        return True

    def setter(self, module: str) -> str | None:
        """The first function of a module that sets an attribute of an object that it has not made; else None."""
        if not _sets_attributes(self._modules[module]):
            return None
        source = self._sources[module]
        read = None if source is None else _read(source)
        return "(its source is not there)" if read is None else read.setter


@dataclass(frozen=True, slots=True)
class _Read:
    """What a source shows.

    Attributes:
        changed: The names whose values functions may change or pass on.
        handed: The calls made on import: pairs of a called name and the name of an argument.
        setter: See `Uses.setter`.
    """

    changed: frozenset[str]
    handed: frozenset[tuple[str, str]]
    setter: str | None


def _home(value: object) -> str | None:
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)


def _source_of(module: ModuleType) -> str | None:
    loader: Any = getattr(module.__spec__, "loader", None)
    if isinstance(loader, ExtensionFileLoader):
        return ""  # no functions in Python
    try:
        source: str | None = loader.get_source(module.__name__)
    except (AttributeError, OSError, ImportError, SyntaxError):
        return None
    return source


def _sets_attributes(module: ModuleType) -> bool:
    """Whether a function of the module may set an attribute, as its code shows in a moment."""
    loader: Any = getattr(module.__spec__, "loader", None)
    try:
        code: CodeType | None = loader.get_code(module.__name__)
    except (AttributeError, OSError, ImportError, SyntaxError):
        return False  # as for a module that was made by hand
    return code is not None and any(map(_may_set, _inner(code)))


def _inner(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _inner(one)


def _may_set(code: CodeType) -> bool:
    return any(one in code.co_code[::2] for one in _SETTING) or not _SETTERS.isdisjoint(code.co_names)


@lru_cache(maxsize=1024)
def _read(source: str) -> _Read | None:
    try:
        tree = ast.parse(source)
        reading = _READING_BUILTINS - set(_bound(tree))
        setter = next(_setters(tree, frozenset(), frozenset()), None)
        return _Read(frozenset(_used(tree, reading)), frozenset(_handed(tree)), setter)
    except (SyntaxError, RecursionError, SystemError):  # the last: python/cpython#106905
        return None


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
            case ast.ExceptHandler(name=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                pass


# --- what is read, and what is not


def _used(tree: ast.Module, reading: frozenset[str]) -> Iterator[str]:
    """The names that functions use for anything but reading. A text counts as a name, because of `getattr`."""
    waiting: list[tuple[ast.AST, ast.AST | None, ast.AST | None, bool]] = [(tree, None, None, False)]
    while waiting:
        node, parent, above, inside = waiting.pop()
        if inside:
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    if not (isinstance(node.ctx, ast.Load) and _reads(node, parent, above, reading)):
                        yield name
                case ast.Constant(value=str(name)):
                    yield name
                case _:
                    pass
        body = {id(one) for one in _body(node)} if isinstance(node, _FUNCTIONS) else ()
        waiting += [(child, node, parent, inside or id(child) in body) for child in ast.iter_child_nodes(node)]


def _reads(node: ast.AST, parent: ast.AST | None, above: ast.AST | None, reading: frozenset[str]) -> bool:
    """Whether this use of a list, dict or set, in this node and the one above it, only reads it."""
    match parent:
        case ast.Attribute(attr=method):
            return isinstance(above, ast.Call) and above.func is parent and method in _READING_METHODS
        case ast.Subscript(value=read, ctx=ast.Load()) | ast.YieldFrom(value=read) | ast.AugAssign(value=read):
            return read is node
        case ast.For(iter=read) | ast.AsyncFor(iter=read) | ast.comprehension(iter=read):
            return read is node
        case ast.If(test=read) | ast.While(test=read) | ast.IfExp(test=read) | ast.Assert(test=read):
            return read is node
        case ast.Call(func=ast.Name(id=function), args=given):
            # `max(HELD, x)` would pass it on.
            return (function in reading and given == [node]) or (function in _READING_EACH and node in given)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="join")):
            return True
        case ast.Dict(keys=keys, values=values):
            return any(key is None and value is node for key, value in zip(keys, values, strict=True))
        case ast.keyword(arg=None) | ast.Starred(ctx=ast.Load()):
            return True  # its members are passed on
        case ast.Compare() | ast.BinOp() | ast.FormattedValue() | ast.UnaryOp(op=ast.Not()):
            return True
        case _:
            return False


def _handed(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The calls that an import of the module makes: pairs of a called name and the name of an argument."""
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
            for one in (one for one in node.body if isinstance(one, _DEFINITIONS)):
                of_class = one.name in _OF_CLASS or _has(one, "classmethod")
                of_skill = skill and one.name != "__init__"  # it is made on import
                first = _first(one) if of_class or of_skill else frozenset[str]()
                yield from _setters(one, bound, first, f"{where}.{node.name}".lstrip("."))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            name = f"{where}.{getattr(node, 'name', 'lambda')}".lstrip(".")
            globals_ = {name for one in ast.walk(node) if isinstance(one, ast.Global) for name in one.names}
            inner = bound | ({name for one in ast.iter_child_nodes(node) for name in _bound(one)} - globals_)
            # What is defined within is often kept: it is what a decorator returns.
            kept = {one.name for one in _body(node) if isinstance(one, _DEFINITIONS)}
            for part in _body(node):
                yield from _setters(part, inner - kept if isinstance(part, _DEFINITIONS) else inner, shared, name)
        case _:
            if where and _sets(node, bound - shared, making=where.rpartition(".")[2] in _MAKING):
                yield where
            for child in ast.iter_child_nodes(node):
                yield from _setters(child, bound, shared, where)


def _sets(node: ast.AST, own: frozenset[str], *, making: bool) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="__setattr__" | "__delattr__")):
            return not making
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[value, *_]):
            return _is_class(value) or _root(value) not in own
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


def _has(node: ast.AST, decorator: str) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == decorator for mark in getattr(node, "decorator_list", ()))


def _first(function: ast.AST) -> frozenset[str]:
    args = getattr(function, "args", None)
    return frozenset(one.arg for one in (*args.posonlyargs, *args.args)[:1]) if args is not None else frozenset()
