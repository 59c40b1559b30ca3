"""Conditions in words, for the labels of a diagram, which takes no `<`, `=` or `:`."""

from __future__ import annotations

import ast

LONGEST = 60
"""Longer conditions are left out: a label is read at a glance."""

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "is",
    ast.NotEq: "is not",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.Lt: "below",
    ast.LtE: "at most",
    ast.Gt: "above",
    ast.GtE: "at least",
    ast.In: "in",
    ast.NotIn: "not in",
}


def condition(test: ast.expr) -> str:
    """A condition in words: `order.cents above LIMIT`; empty if it is too long for a label."""
    text = _words(test)
    return text if len(text) <= LONGEST else ""


def _words(node: ast.expr) -> str:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            parts = [f"{_COMPARED[type(op)]} {_words(other)}" for op, other in zip(ops, others, strict=True)]
            return " ".join([_words(left), *parts])
        case ast.BoolOp(op=op, values=values):
            return (" and " if isinstance(op, ast.And) else " or ").join(map(_words, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"not {_words(operand)}"
        case ast.Await(value=value):
            return _words(value)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.strip("_").replace("_", " ")  # what it is called with says little
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return attr
        case ast.Constant(value=str(text)):
            return text
        case _:
            return ast.unparse(node)
