"""The rules about what code of a skill uses: clock, random, I/O, threads, tools, and state outside the task."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from refold.static.code.module import Module, Names, Reach, dotted
from refold.static.code.units import Role, Unit, code_of, find, is_skill_class
from refold.static.finding import Finding
from refold.static.rules.impure import impurity_of

ToolName = Callable[[str], str | None]
"""A tool's name, from the dotted name of a function that is loaded; None where it is no tool."""

CHANGING_METHODS = frozenset({
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert",
    "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault",
    "sort", "subtract", "symmetric_difference_update", "update",
})  # fmt: skip

SHARED = "which all tasks share and no journal holds: keep it in the state"


@dataclass(frozen=True, slots=True)
class _Use:
    """A name that is used: the whole of it, `datetime.now` and not also `datetime`."""

    node: ast.expr
    called: bool
    arguments: int


def impure(unit: Unit, reach: Reach, tool_name: ToolName) -> Iterator[Finding]:
    """Findings for names that a piece of code may not use."""
    names = unit.names
    later = _later(unit.node) if isinstance(unit.node, ast.ClassDef) else None
    for use in _uses(unit):
        name = dotted(use.node, names)
        method = use.node.attr if isinstance(use.node, ast.Attribute) else ""
        tool = _tool(name, unit, reach, tool_name) if use.called else None
        if tool is not None:
            yield finding(unit, use.node, "tool", f"calls the tool {tool!r} itself: {_ask_for(unit, tool)}")
        elif why := impurity_of(
            name, method, called=use.called, arguments=use.arguments, shared=isinstance(_root(use.node), ast.Name)
        ):
            if later is not None and why.rule not in ("clock", "random") and id(use.node) not in later:
                continue  # read once, when the module is imported
            verb = "calls" if use.called else "uses"
            text = f"{verb} `{ast.unparse(use.node)}`, which {why.does}: {why.instead}"
            yield finding(unit, use.node, why.rule, text)
    yield from _shared_state(unit, names, reach)


def finding(unit: Unit, node: ast.AST, rule: str, message: str) -> Finding:
    """A finding at a node of a piece of code."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    return Finding(file=unit.module.file, line=line, column=column, rule=rule, message=f"{unit.where} {message}")


def _uses(unit: Unit) -> Iterator[_Use]:
    inner: set[int] = set()
    for node in code_of(unit.node):
        match node:
            case ast.Call(func=func):
                inner.add(id(func))
                yield _Use(func, True, len(node.args) + len(node.keywords))
                _hide_chain(func, inner)
            case ast.Attribute(ctx=ast.Load()) | ast.Name(ctx=ast.Load()) if id(node) not in inner:
                yield _Use(node, False, 0)
                _hide_chain(node, inner)
            case _:
                pass


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _later(cls: ast.ClassDef) -> set[int]:
    """What of a class's defaults does not run when the class is made: lambdas, and what is given as a factory."""
    found: set[int] = set()
    for node in code_of(cls):
        match node:
            case ast.Lambda(body=body):
                found |= {id(one) for one in ast.walk(body)}
            case ast.keyword(arg=str(name), value=value) if name.endswith("factory"):
                found |= {id(one) for one in ast.walk(value)}
            case _:
                pass
    return found


def _hide_chain(node: ast.expr, inner: set[int]) -> None:
    while isinstance(node, ast.Attribute):
        node = node.value
        inner.add(id(node))


def _tool(name: str | None, unit: Unit, reach: Reach, tool_name: ToolName) -> str | None:
    definition = find(name, unit.module, reach)
    if definition is not None:
        own = f"{definition.module.name}.{definition.node.name}"
        return (tool_name(own) or definition.node.name) if definition.is_tool else None
    return None if name is None else tool_name(name)


def _ask_for(unit: Unit, tool: str) -> str:
    if isinstance(unit.node, ast.AsyncFunctionDef):
        return f"ask for it with `await ctx.tool({tool!r}, ...)`"
    if unit.role is Role.STEP and unit.cls is not None:
        return f"ask for it with `await ctx.tool({tool!r}, ...)`, and make the step `async def`"
    return f"ask for it with `.cmd(Cmd.tool({tool!r}, {tool!r}, ...))`"


def _shared_state(unit: Unit, names: Names, reach: Reach) -> Iterator[Finding]:
    known = {**names, **dict.fromkeys(_hidden(unit.node))}
    for node in code_of(unit.node):
        match node:
            case ast.Global(names=[name, *_]):
                yield finding(unit, node, "shared", f"writes the global {name!r}, {SHARED}")
            case ast.Attribute(value=ast.Name(id=me), attr=attr, ctx=ast.Store() | ast.Del()) if _is_skills(
                unit, me, reach
            ):
                text = f"writes `{me}.{attr}`, {SHARED}"
                yield finding(unit, node, "shared", text)
            case ast.expr() if (changed := _changed(node)) is not None and _is_held(
                changed, known, unit, reach, called=isinstance(node, ast.Call)
            ):
                yield finding(unit, node, "shared", f"changes `{ast.unparse(changed)}`, {SHARED}")
            case _:
                pass


def _hidden(code: ast.AST) -> Iterator[str]:
    """Local names whose value the code does not show: parameters, also of functions within, and what is bound twice."""
    stored: set[str] = set()
    for node in ast.walk(code):
        match node:
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                if name in stored:
                    yield name
                stored.add(name)
            case _:
                pass


def _changed(node: ast.expr) -> ast.expr | None:
    """What an expression changes in place: what it sets an item or an attribute of, or calls such a method of."""
    match node:
        case ast.Call(func=ast.Attribute(value=changed, attr=method)) if method in CHANGING_METHODS:
            return changed
        case ast.Subscript(value=changed, ctx=ast.Store() | ast.Del()):
            return changed
        case ast.Attribute(value=changed, ctx=ast.Store() | ast.Del()):
            return changed
        case _:
            return None


def _is_held(changed: ast.expr, names: Names, unit: Unit, reach: Reach, *, called: bool) -> bool:
    """Whether this is a class, list, dict or set of a module of the application, or what one of them holds."""
    if called and _is_class(dotted(changed, names), unit.module, reach):
        return False  # a method of the class, of whatever name
    while isinstance(changed, ast.Subscript | ast.Attribute):
        if _names_held(dotted(changed, names), unit.module, reach):
            return True
        changed = changed.value
    return _names_held(dotted(changed, names), unit.module, reach)


def _names_held(name: str | None, module: Module, reach: Reach) -> bool:
    home, own = _home(name, module, reach)
    return home is not None and own in {*home.containers, *home.classes}


def _is_class(name: str | None, module: Module, reach: Reach) -> bool:
    home, own = _home(name, module, reach)
    return home is not None and own in home.classes


def _home(name: str | None, module: Module, reach: Reach) -> tuple[Module | None, str]:
    where, _, own = (name or "").rpartition(".")
    return module if where == module.name else (reach(where) if where else None), own


def _is_skills(unit: Unit, name: str, reach: Reach) -> bool:
    """Whether a name is the `self` of a skill, and not of a value that a skill makes."""
    return name == unit.me and (owner := unit.owner) is not None and is_skill_class(owner, reach)
