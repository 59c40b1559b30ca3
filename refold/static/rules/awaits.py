"""The rules about how code of a skill asks and ends: each call of ctx is awaited, nothing else is, and a step returns
a transition. A step may reject the task only before its first await."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from refold.static.code.asked import CALLS, TOGETHER, WRITTEN
from refold.static.code.module import FunctionNode, Module, Reach, ctx_names, dotted
from refold.static.code.units import Role, Unit, code_of, find
from refold.static.finding import Finding
from refold.static.rules.impure import impurity_of
from refold.static.rules.purity import finding

AWAITABLE = CALLS | TOGETHER
ENDS = {"await_input", "complete", "fail", "goto", "reject"}
ENDS_OF = {
    Role.REDUCER: "`Transition.to(...)` or `Transition.ignore(state)`",
    Role.STEP: "`ctx.goto(...)` or `ctx.complete(...)`",
}

AS_RESULT = (ast.Attribute, ast.BinOp, ast.BoolOp, ast.Compare, ast.For, ast.FormattedValue, ast.If, ast.UnaryOp)
"""Syntax that uses a name as a result, which it would be only after an `await`."""

HOLDS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Syntax that puts a call into a container."""

Parents = Mapping[int, ast.AST]


def misused(unit: Unit, reach: Reach) -> Iterator[Finding]:
    """Findings for calls of ctx that are not awaited, wrong awaits, and steps without a transition, or with a late
    rejection."""
    if not isinstance(unit.node, FunctionNode):
        return
    ctx = ctx_names(unit.node)
    parents = {id(child): node for node in ast.walk(unit.node) for child in ast.iter_child_nodes(node)}
    for node in code_of(unit.node):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr)) if id_ in ctx and attr in AWAITABLE:
                yield from _unawaited(unit, node, attr, parents)
            case ast.Await(value=value):
                yield from _await_of(unit, value, ctx, reach)
            case ast.AsyncFor() | ast.AsyncWith():
                text = "waits for something that is no call of ctx (`async for`, `async with`): do it in a tool"
                yield finding(unit, node, "await", text)
            case _:
                pass
    if unit.role is not Role.HELPER:
        yield from _returns(unit, ctx, reach)
    if unit.role is Role.STEP:
        for call in _rejects(unit.node.body, ctx, late=False):
            text = "rejects the task after an await, and only its first message can be rejected: write `ctx.fail(...)`"
            yield finding(unit, call, "return", text)


def _unawaited(unit: Unit, call: ast.Call, verb: str, parents: Parents) -> Iterator[Finding]:
    if unit.role is Role.REDUCER:
        written = next((name for name, meant in WRITTEN.items() if meant == verb), verb if verb in CALLS else "tool")
        text = f"calls `ctx.{verb}`, which only a step can await: write `Transition.to(...).cmd(Cmd.{written}(...))`"
        yield finding(unit, call, "not-awaited", text)
        return
    child: ast.AST = call
    as_result: tuple[type[ast.AST], ...] = AS_RESULT
    while (parent := parents.get(id(child))) is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.Await) or (isinstance(parent, ast.Call) and _is_gather(parent)):
            return
        if isinstance(parent, ast.Call):
            if _takes_values(parent, unit):
                break
            return  # handed to a function, such as `calls.append`
        if isinstance(parent, HOLDS):
            as_result = ()  # the name's attributes, items and truth are those of the container
        child = parent
    match parent:
        case ast.Return():
            return  # a helper's caller awaits it; for a step another rule reports it
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if _awaited_later(
            unit, name, parents, as_result
        ):
            return
        case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign() | ast.Expr() | ast.If() | ast.While() | ast.Call():
            first = ast.unparse(call.args[0]) if call.args else "..."
            plain = f", and make it `async def {unit.node.name}`" if isinstance(unit.node, ast.FunctionDef) else ""
            text = f"never awaits `ctx.{verb}({first}, ...)`: write `await ctx.{verb}(...)`{plain}"
            yield finding(unit, call, "not-awaited", text)
        case _:
            return


def _takes_values(call: ast.Call, unit: Unit) -> bool:
    """Whether a call is of a method of ctx that takes results, as all do but those that await several calls."""
    assert isinstance(unit.node, FunctionNode)
    match call.func:
        case ast.Attribute(value=ast.Name(id=id_), attr=attr):
            return id_ in ctx_names(unit.node) and attr not in TOGETHER
        case _:
            return False


def _is_gather(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "gather"


def _awaited_later(unit: Unit, name: str, parents: Parents, as_result: tuple[type[ast.AST], ...]) -> bool:
    """Whether a name is used otherwise than as a result: by code that may await it, which is not examined."""
    code = code_of(unit.node)
    uses = [one for one in code if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)]
    return any(not isinstance(parents.get(id(use)), as_result) for use in uses)


def _await_of(unit: Unit, value: ast.expr, ctx: set[str], reach: Reach) -> Iterator[Finding]:
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr)) if id_ in ctx:
            if attr in ENDS:
                text = f"awaits `ctx.{attr}(...)`, which is a transition: write `return ctx.{attr}(...)`"
                yield finding(unit, value, "await", text)
            return
        case ast.Call(func=func):
            name = dotted(func, unit.names)
            if name is None or impurity_of(name, called=True) is not None:
                return  # unknown, or reported by another rule
            if _may_ask(name, unit.module, reach) or _is_given_ctx(value, ctx):
                return  # it may await ctx alone; if it is a tool, another rule reports it
        case ast.Constant() | ast.List() | ast.Tuple() | ast.Dict() | ast.GeneratorExp() | ast.ListComp():
            pass
        case _:
            return
    text = f"awaits `{ast.unparse(value)[:60]}`: a step awaits calls of ctx only; do other work in a tool"
    yield finding(unit, value, "await", text)


def _may_ask(name: str, module: Module, reach: Reach) -> bool:
    """Whether a name leads to the application, or may: what a call returns, and what Python's own functions pass on."""
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(1, len(parts)))
    own = any(prefix == module.name or reach(prefix) is not None for prefix in prefixes)
    return own or parts[0] == "builtins" or name.endswith("()")


def _is_given_ctx(call: ast.Call, ctx: set[str]) -> bool:
    """Whether an argument is ctx or a call of it."""
    for given in (*call.args, *(one.value for one in call.keywords)):
        match given:
            case ast.Name(id=id_) | ast.Call(func=ast.Attribute(value=ast.Name(id=id_))) if id_ in ctx:
                return True
            case _:
                pass
    return False


def _returns(unit: Unit, ctx: set[str], reach: Reach) -> Iterator[Finding]:
    assert isinstance(unit.node, FunctionNode)
    own = [node for node in _own_statements(unit.node) if isinstance(node, ast.Return)]
    ends = ENDS_OF[unit.role]
    raises = any(isinstance(node, ast.Raise) for node in _own_statements(unit.node))
    if not own and not raises:
        yield finding(unit, unit.node, "return", f"returns nothing: return a transition, for example {ends}")
    for node in own:
        if (what := _no_transition(unit, node.value, ctx, reach)) is not None:
            yield finding(unit, node, "return", f"returns {what}: return a transition, for example {ends}")


def _rejects(body: Sequence[ast.stmt], ctx: set[str], *, late: bool) -> Iterator[ast.Call]:
    """The returned `ctx.reject(...)` before which the step has certainly awaited a call of ctx.

    Args:
        body: The statements of one block.
        ctx: The names of the context.
        late: Whether a call was awaited before the block.
    """
    for statement in body:
        if isinstance(statement, FunctionNode | ast.ClassDef):
            continue
        late = late or any(_asks(one, ctx) for one in ast.iter_child_nodes(statement) if isinstance(one, ast.expr))
        match statement:
            case ast.Return(value=ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr="reject")) as call) if (
                late and id_ in ctx
            ):
                yield call
            case _:
                for block in _blocks(statement):
                    yield from _rejects(block, ctx, late=late)


def _blocks(statement: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    """The blocks of a compound statement, with those of its handlers and cases."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, ())
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _asks(node: ast.AST, ctx: set[str]) -> bool:
    """Whether an expression awaits a call of ctx, whatever its parts are."""
    match node:
        case ast.Await(value=ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr))):
            return id_ in ctx and attr in AWAITABLE
        case ast.IfExp(test=first) | ast.BoolOp(values=[first, *_]):
            return _asks(first, ctx)
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return False
        case _:
            return any(_asks(one, ctx) for one in ast.iter_child_nodes(node))


def _own_statements(function: FunctionNode) -> Iterator[ast.AST]:
    """The statements of a function, without those of functions within it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, FunctionNode | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _no_transition(unit: Unit, value: ast.expr | None, ctx: set[str], reach: Reach) -> str | None:
    """A description of a returned value that is certainly not a transition; None otherwise."""
    match value:
        case None | ast.Constant(value=None):
            return "nothing"
        case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Dict() | ast.Set() | ast.Tuple():
            return f"`{ast.unparse(value)[:60]}`"
        case ast.ListComp() | ast.DictComp() | ast.Compare() | ast.BinOp() | ast.Lambda():
            return f"`{ast.unparse(value)[:60]}`"
        case ast.Await(value=ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr))) if id_ in ctx:
            return f"the result of `ctx.{attr}`" if attr in AWAITABLE else None
        case ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr)) if id_ in ctx and attr in AWAITABLE:
            return f"`ctx.{attr}(...)` without awaiting it"
        case ast.Call(func=func) if isinstance(func, ast.Name | ast.Attribute):
            definition = find(dotted(func, unit.names), unit.module, reach)
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                return f"a `{definition.node.name}`"
            return None
        case ast.IfExp(body=body, orelse=orelse):
            return _no_transition(unit, body, ctx, reach) or _no_transition(unit, orelse, ctx, reach)
        case _:
            return None
