"""The rule about what people say: a message is no text and a decision no truth value, so a test of one is always true
or always false."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from refold.static.code.module import FunctionNode, Names, ctx_names
from refold.static.code.units import Unit, code_of
from refold.static.finding import Finding
from refold.static.rules.purity import finding

SAID = {"ask": "Content", "approve": "DecisionMade"}
"""What calls of ctx come back as; `ask` with `expect=` does not."""

INSTEAD = {"Content": "text", "DecisionMade": "approved"}


def misread(unit: Unit) -> Iterator[Finding]:
    """Findings for messages and decisions that are tested for truth, or compared with a text."""
    if not isinstance(unit.node, FunctionNode):
        return
    ctx = ctx_names(unit.node)
    held = _held(unit.node, ctx, unit.module.names)
    for node in code_of(unit.node):
        for tested in _tested(node):
            if kind := _kind(tested, held, ctx):
                yield _found(unit, tested, kind, "which is always true")
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_is_text, sides)):
                known = [(side, kind) for side in sides if (kind := _kind(side, held, ctx))]
                yield from (_found(unit, side, kind, "which equals no text") for side, kind in known)


def _found(unit: Unit, node: ast.expr, kind: str, why: str) -> Finding:
    name = node.id if isinstance(node, ast.Name) else "(...)"
    text = f"tests a `{kind}`, {why}: write `{name}.{INSTEAD[kind]}`"
    return finding(unit, node, "result", text)


def _held(function: FunctionNode, ctx: set[str], names: Names) -> Mapping[str, str]:
    """The names that only ever stand for a message or a decision."""
    given = [*function.args.posonlyargs, *function.args.args]
    given = given[: len(given) - len(function.args.defaults)]
    held = {one.arg: kind for one in given if one.annotation and (kind := _annotated(one.annotation, names))}
    stored = [one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (kind := _asked(node.value, ctx)):
            held.setdefault(name := node.targets[0].id, kind)
            stored.remove(name)
    return {name: kind for name, kind in held.items() if name not in stored}


def _annotated(annotation: ast.expr, names: Names) -> str | None:
    first, *rest = ast.unparse(annotation).strip("'\"").split(".")
    kind = rest[-1] if rest else first
    whose = (names.get(first, "refold") or "").split(".")[0]  # a class of another module may have the same name
    return kind if kind in INSTEAD and whose == "refold" else None


def _asked(value: ast.expr, ctx: set[str]) -> str | None:
    """What an awaited call of ctx comes back as, if that is a message or a decision."""
    match value:
        case ast.Await(value=ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr), keywords=keywords)):
            plain = not any(one.arg in ("expect", None) for one in keywords)
            return SAID.get(attr) if id_ in ctx and plain else None
        case _:
            return None


def _kind(node: ast.expr, held: Mapping[str, str], ctx: set[str]) -> str | None:
    return held.get(node.id) if isinstance(node, ast.Name) else _asked(node, ctx)


def _tested(node: ast.AST) -> list[ast.expr]:
    """What a piece of syntax asks for its truth."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            return [test]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.BoolOp(values=values):
            return values
        case _:
            return []


def _is_text(node: ast.expr) -> bool:
    inner = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return bool(inner) and all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in inner)
