"""A parsed module: its functions and classes, and the objects that its names refer to."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Names = Mapping[str, str | None]
"""What a name stands for, as a dotted path from an absolute module; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module.

    Attributes:
        name: As it is imported; "" where unknown.
        file: For findings, and to tell a package by its `__init__.py`.
        tree: The whole.
        lines: The source, by line.
        names: What its top-level names stand for.
        functions: Its top-level functions by name.
        classes: Its top-level classes by name.
        containers: The top-level names under which it holds a list, dict or set.
    """

    name: str
    file: str
    tree: ast.Module
    lines: tuple[str, ...]
    names: Names
    functions: Mapping[str, FunctionNode] = field(default_factory=dict)
    classes: Mapping[str, ast.ClassDef] = field(default_factory=dict)
    containers: frozenset[str] = frozenset()

    @property
    def package(self) -> str:
        """Where its relative imports start; "" where it is in no package."""
        return _package(self.name, self.file)


Reach = Callable[[str], Module | None]
"""Finds the source of another module by its dotted name; None for modules outside the application."""


def parse(source: str, file: str, name: str = "") -> Module:
    """Parse a module.

    Raises:
        SyntaxError: The source is not valid Python.
    """
    tree = ast.parse(source, file)
    statements = list(top_level(tree.body))
    functions = {one.name: one for one in statements if isinstance(one, FunctionNode)}
    classes = {one.name: one for one in statements if isinstance(one, ast.ClassDef)}
    names: dict[str, str | None] = {own: f"{name}.{own}" for own in (*functions, *classes)}
    for statement in statements:
        names.update(_imported(statement, _package(name, file)))
    containers: set[str] = set()
    for statement in statements:
        _note_assignment(statement, names, calls=True)
        if _is_container(getattr(statement, "value", None)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            containers |= {one.id for one in targets if isinstance(one, ast.Name)}
    names.update({own: f"{name}.{own}" for own in containers})
    lines = tuple(re.split(r"\r\n|\r|\n", source))  # `splitlines` knows ends of lines that Python does not
    return Module(name, file, tree, lines, names, functions, classes, frozenset(containers))


def methods(cls: ast.ClassDef) -> dict[str, FunctionNode]:
    """The functions of a class's body."""
    return {one.name: one for one in top_level(cls.body) if isinstance(one, FunctionNode)}


def ctx_names(function: FunctionNode) -> set[str]:
    """The parameters that are the context, by name or annotation."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    annotated = {one.arg for one in arguments if one.annotation and ast.unparse(one.annotation).endswith("Ctx")}
    return annotated | {one.arg for one in arguments if one.arg == "ctx"}


def local_names(function: FunctionNode | ast.Lambda, module: Module) -> dict[str, str | None]:
    """What names stand for inside a function: those of its module, but for what the function binds itself."""
    names = dict(module.names)
    for argument in _arguments(function):
        names[argument.arg] = None
    for node in ast.walk(function):
        names.update(_imported(node, module.package))
        match node:
            case ast.Name(id=id, ctx=ast.Store()):
                names[id] = None
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node is not function:
                names[node.name] = None
            case ast.MatchAs(name=str(id)) | ast.MatchStar(name=str(id)):
                names[id] = None
            case _:
                pass
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            _note_assignment(node, names, calls=False)
    return names


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        made = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return made in ("list", "dict", "set", "defaultdict", "Counter", "deque", "OrderedDict")
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def dotted(node: ast.expr, names: Names) -> str | None:
    """What an expression names, from an absolute module: `datetime.datetime.now`, `pathlib.Path().open`.

    A call is shown as `()`. None where it cannot be told.
    """
    match node:
        case ast.Name(id=id):
            if id in names:
                return names[id]
            return f"builtins.{id}" if hasattr(builtins, id) else None
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value, names)
            return None if base is None else f"{base}.{attr}"
        case ast.Call(func=func):
            base = dotted(func, names)
            return None if base is None else f"{base}()"
        case _:
            return None


def _arguments(function: FunctionNode | ast.Lambda) -> list[ast.arg]:
    of = function.args
    return [*of.posonlyargs, *of.args, *of.kwonlyargs, *filter(None, (of.vararg, of.kwarg))]


def bound_by(statement: ast.stmt) -> set[str]:
    """The names that a definition or an assignment binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=id)):
            return {id}
        case _:
            return set()


def imported_names(node: ast.AST) -> list[str]:
    """The names that an import binds."""
    return list(_imported(node, ""))


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the body runs, those under `if`, `for`, `try` and `with` too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.For | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from top_level(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from top_level(handler.body)


def _package(name: str, file: str) -> str:
    return name if PurePath(file).name == "__init__.py" else name.rpartition(".")[0]


def _imported(node: ast.AST, package: str) -> dict[str, str | None]:
    match node:
        case ast.Import(names=aliases):
            return {
                one.asname or one.name.partition(".")[0]: one.name if one.asname else one.name.partition(".")[0]
                for one in aliases
            }
        case ast.ImportFrom(module=source, names=aliases, level=level):
            around = package.split(".") if package else []
            if level > len(around):  # no package is known, or the import leads out of it
                return {one.asname or one.name: None for one in aliases}
            base = around[: len(around) - level + 1] if level else []
            prefix = ".".join(filter(None, (*base, source)))
            if aliases[0].name == "*":
                return {name: f"{prefix}.{name}" for name in _public(prefix)}
            return {one.asname or one.name: f"{prefix}.{one.name}" for one in aliases}
        case _:
            return {}


def _public(module: str) -> list[str]:
    """The names that `from module import *` binds; none where the module is not loaded."""
    loaded = vars(sys.modules[module]) if module in sys.modules else {}
    return list(loaded.get("__all__", [name for name in loaded if not name.startswith("_")]))


def _note_assignment(node: ast.stmt, names: dict[str, str | None], *, calls: bool) -> None:
    """`now = datetime.now` makes `now` another name for it; `client = httpx.Client()` at module level too."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=id)], value=value)
            | ast.AnnAssign(target=ast.Name(id=id), value=ast.expr() as value)
        ):
            if calls or isinstance(value, ast.Name | ast.Attribute) or _is_path(value, names):
                names[id] = dotted(value, {**names, id: None})
        case _:
            pass


def _is_path(value: ast.expr, names: Names) -> bool:
    return isinstance(value, ast.Call) and (dotted(value, names) or "").startswith("pathlib.")
