"""The calls by which code of a skill asks for something, whichever of the three ways they are written in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from refold.core.authoring.context import Ctx
from refold.static.code.module import FunctionNode, ctx_names, dotted
from refold.static.code.units import Unit, code_of


def _returning(*kinds: str) -> frozenset[str]:
    """The public methods of `Ctx` that are annotated as returning one of these."""
    found = {name: str(getattr(one, "__annotations__", {}).get("return")) for name, one in vars(Ctx).items()}
    return frozenset(name for name, kind in found.items() if kind.startswith(kinds) and not name.startswith("_"))


CALLS = _returning("Call[")
"""Calls of `ctx` that are awaited."""

TOGETHER = _returning("Gather[", "First[", "Parallel[")
"""Methods of `ctx` that are awaited for several calls."""

CHAINED = {"artifact", "cmd", "message", "patch", "status"}
"""What is chained to a transition."""

WRITTEN = {"ask_user": "ask", "ask_approval": "approve"}
"""What `Cmd` calls otherwise than `ctx` does."""

_CMD = ("refold.Cmd", "refold.core.Cmd", "refold.core.commands.Cmd")
_TRANSITION = ("refold.Transition", "refold.core.Transition", "refold.core.authoring.transition.Transition")


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of `ctx`, `Cmd` or `Transition`.

    Attributes:
        node: The call.
        verb: As `ctx` names it: `tool`, `ask`, `goto`.
        by: `ctx`, `Cmd` or `Transition`.
        unit: The function that it stands in.
    """

    node: ast.Call
    verb: str
    by: str
    unit: Unit

    def argument(self, position: int, name: str | None = None) -> ast.expr | None:
        """An argument by its position, or by its name where it has one; None where it is left out."""
        if len(self.node.args) > position and not any(isinstance(one, ast.Starred) for one in self.node.args):
            return self.node.args[position]
        return next((one.value for one in self.node.keywords if name is not None and one.arg == name), None)

    @property
    def named(self) -> dict[str, ast.expr]:
        """The arguments that are given by name."""
        return {one.arg: one.value for one in self.node.keywords if one.arg is not None}

    @property
    def has_more(self) -> bool:
        """Whether it has `**arguments`, whose names the code does not say."""
        return any(one.arg is None for one in self.node.keywords)


def asked_in(unit: Unit) -> Iterator[Asked]:
    """The calls in a function."""
    if isinstance(unit.node, ast.ClassDef):
        return
    ctx = ctx_names(unit.node) if isinstance(unit.node, FunctionNode) else {"ctx"}
    names = unit.names
    for node in code_of(unit.node):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr)) if id_ in ctx:
                yield Asked(node, attr, "ctx", unit)
            case ast.Call(func=ast.Attribute(value=base, attr=attr)):
                of = dotted(base, names)
                if of in _CMD:
                    yield Asked(node, WRITTEN.get(attr, attr), "Cmd", unit)
                elif of in _TRANSITION:
                    yield Asked(node, attr, "Transition", unit)
            case _:
                pass
