"""The rule about the names of ctx: code of a skill asks for nothing that ctx does not have."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from refold.core.authoring.context import Ctx
from refold.static.code.module import FunctionNode, dotted
from refold.static.code.units import Role, Unit, code_of
from refold.static.finding import Finding
from refold.static.rules.purity import finding

_CTX = ("refold.Ctx", "refold.core.Ctx", "refold.core.authoring.context.Ctx")


def misnamed(unit: Unit) -> Iterator[Finding]:
    """Findings for names that ctx does not have: each would fail the task as an `AttributeError`."""
    if not isinstance(unit.node, FunctionNode):
        return
    ctx = _certain(unit, unit.node)
    for node in code_of(unit.node):
        match node:
            case ast.Attribute(value=ast.Name(id=id_), attr=attr) if id_ in ctx and not hasattr(Ctx, attr):
                text = f"uses `{id_}.{attr}`, which a `Ctx` does not have{_meant(id_, attr)}"
                yield finding(unit, node, "call", text)
            case _:
                pass


def _certain(unit: Unit, function: FunctionNode) -> set[str]:
    """The parameters that are certainly a `Ctx` wherever the function names them."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    found = {one.arg for one in given if _is_ctx(one, unit)}
    code = [one for statement in function.body for one in ast.walk(statement)]
    inner = {one.arg for one in code if isinstance(one, ast.arg)}
    bound = {one.id for one in code if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    captured = {one.name for one in code if isinstance(one, ast.MatchAs | ast.MatchStar)}
    return found - inner - bound - captured


def _is_ctx(argument: ast.arg, unit: Unit) -> bool:
    annotation = argument.annotation
    if annotation is None:
        return argument.arg == "ctx" and unit.role is not Role.HELPER
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return False
    return dotted(annotation, unit.module.names) in _CTX


def _meant(ctx: str, name: str) -> str:
    names = [one for one in vars(Ctx) if not one.startswith("_")]
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean `{ctx}.{near[0]}`?" if near else f"; it has: {', '.join(sorted(names))}"
