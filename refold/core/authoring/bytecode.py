"""Which steps, functions and attributes a function names literally: read from its bytecode when a skill is defined.

Nothing is run, and no source file is needed. Results are cached by code object; these are equal if their code is, so a
module that Temporal's sandbox imports for every task is read once.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any

from refold.core.authoring.signatures import annotations_of


@dataclass(frozen=True, slots=True)
class Leads:
    """A call that leads to another step, with a literal first argument.

    Attributes:
        to: The first argument: the step of a `goto`, the slot of a question.
        names: The keywords; None if they are not literal, as in `**more`.
        alone: Whether the call's result is returned as it is, with nothing chained.
    """

    to: str
    names: tuple[str, ...] | None
    alone: bool


def leads(function: Callable[..., Any], method: str) -> list[Leads]:
    """The calls `ctx.method("literal", …)` and `Transition.method("literal", …)` in the code, in order."""
    known = getattr(function, "__globals__", {})
    kinds = annotations_of(function)
    ctx = {"ctx", *(name for name, kind in kinds.items() if str(getattr(kind, "__name__", kind)).endswith("Ctx"))}
    return [
        found
        for code in _codes(function)
        for receiver, found in _leads(code, method)
        if receiver in ctx or receiver == "Transition" or getattr(known.get(receiver), "__name__", "") == "Transition"
    ]


def mentions(function: Callable[..., Any], attribute: str) -> bool:
    """Whether the code uses an attribute of this name."""
    return any(attribute in code.co_names for code in _codes(function))


def attributes_of(function: Callable[..., Any], name: str) -> list[str]:
    """The attributes that the code reads of the parameter `name`, each once; none if the code assigns to `name`."""
    code = getattr(function, "__code__", None)
    return list(dict.fromkeys(_attributes(code, name))) if isinstance(code, CodeType) else []


def called_globals(function: Callable[..., Any]) -> list[Any]:
    """The module-level functions that the code calls by their bare name, if they are defined already."""
    known = getattr(function, "__globals__", {})
    names = [name for code in _codes(function) for name in _called(code)]
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _codes(function: Callable[..., Any]) -> Iterator[CodeType]:
    code = getattr(function, "__code__", None)
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(const for const in code.co_consts if isinstance(const, CodeType))


@lru_cache(maxsize=4096)
def _called(code: CodeType) -> tuple[str, ...]:
    # The interpreter marks a global that is loaded to be called with the lowest bit of the argument.
    return tuple(
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname == "LOAD_GLOBAL" and instruction.arg is not None and instruction.arg & 1
    )


@lru_cache(maxsize=4096)
def _attributes(code: CodeType, name: str) -> tuple[str, ...]:
    instructions = list(dis.get_instructions(code))
    if any(one.opname.startswith("STORE_") and one.argval == name for one in instructions):
        return ()
    return tuple(
        following.argval
        for this, following in pairwise(instructions)
        if this.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and this.argval == name
        if following.opname in ("LOAD_ATTR", "LOAD_METHOD")
    )


@lru_cache(maxsize=4096)
def _leads(code: CodeType, method: str) -> tuple[tuple[str, Leads], ...]:
    """The calls of a method with a literal first argument, each with the name of the receiver."""
    found = []
    instructions = list(dis.get_instructions(code))
    # Where a call has keywords, Python 3.13 pushes a NULL between the method and its arguments.
    said = [(at, one) for at, one in enumerate(instructions) if one.opname != "PUSH_NULL"]
    for (at, on), (_, loads), (given, first) in zip(said, said[1:], said[2:], strict=False):
        named = loads.opname in ("LOAD_ATTR", "LOAD_METHOD") and loads.argval == method
        literal = first.opname == "LOAD_CONST" and isinstance(first.argval, str)
        if named and on.opname.startswith("LOAD_") and literal and _is_whole(loads, instructions[given:]):
            receiver = on.argval[-1] if isinstance(on.argval, tuple) else on.argval
            names, alone, by_place = _call(code, instructions, at)
            if by_place:
                found.append((str(receiver), Leads(first.argval, names, alone)))
    return tuple(found)


def _is_whole(method: dis.Instruction, given: list[dis.Instruction]) -> bool:
    """Whether the constant that is loaded first in `given` is the whole argument of the call of `method`.

    Else it is a part of a larger expression, as in `"do_" + kind`: an instruction for that one covers the constant in
    the source, and begins behind the method, as the call does not. Where Python keeps no columns, nothing counts as
    whole.
    """
    (_, behind), (first, last) = _span(method), _span(given[0])
    # Not another copy of it: Python compiles what a `finally` holds twice.
    spans = (_span(one) for one in given[1:] if one.opname != "LOAD_CONST")
    return behind < first and not any(behind < start <= first and last <= end for start, end in spans)


def _span(one: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the source of an instruction begins and ends, by line and column; (0, 0) where that is not known."""
    by = one.positions
    if by is None or by.lineno is None or by.end_lineno is None or by.col_offset is None or by.end_col_offset is None:
        return (0, 0), (0, 0)
    return (by.lineno, by.col_offset), (by.end_lineno, by.end_col_offset)


def _call(code: CodeType, instructions: list[dis.Instruction], at: int) -> tuple[tuple[str, ...] | None, bool, bool]:
    """Of the call whose receiver is loaded at `at`: its keywords, whether its result is returned at once, and whether
    an argument is given by its place."""
    depth, names = 1, tuple[str, ...]()
    for here in range(at + 1, len(instructions)):
        one = instructions[here]
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            break  # an argument is a condition, or awaited
        if one.opname == "KW_NAMES" and one.arg is not None:
            names = code.co_consts[one.arg]
        depth += dis.stack_effect(one.opcode, one.arg, jump=False)
        if not one.opname.startswith("CALL"):
            continue
        if one.opname == "CALL_KW":
            names = instructions[here - 1].argval
        if depth <= 1:
            returned = instructions[here + 1].opname == "RETURN_VALUE"
            if one.opname == "CALL_FUNCTION_EX":
                return None, returned, True
            return names, returned, (one.arg or 0) > len(names)
        names = ()
    return None, False, True
