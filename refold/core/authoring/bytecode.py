"""What a function's code says literally, read from its bytecode: which steps it goes to, what it calls by name.

Only the code object is read: no source file, and nothing is run. Code objects are equal where their code is, so what
one says is read once, however often its module is imported (in Temporal's sandbox, for every task).
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any


@dataclass(frozen=True, slots=True)
class Leads:
    """A call that leads to another step, as far as it is literal.

    Attributes:
        to: Its first argument: the step of a `goto`, the slot of a question.
        names: Its keywords; None where the code does not say them literally.
        alone: Whether what it returns is returned as it is.
    """

    to: str
    names: tuple[str, ...] | None
    alone: bool


def literal_gotos(function: Callable[..., Any]) -> list[str]:
    """The step names that stand as literals in `goto("name", …)`, in order, each once."""
    return list(dict.fromkeys(one.to for one in leads(function, "goto")))


def leads(function: Callable[..., Any], method: str) -> list[Leads]:
    """The calls `ctx.method("literal", …)` and `Transition.method("literal", …)` in the code, in order."""
    known = getattr(function, "__globals__", {})
    ctx = {
        "ctx",
        *(name for name, kind in _annotations(function) if str(getattr(kind, "__name__", kind)).endswith("Ctx")),
    }
    return [
        found
        for code in _codes(function)
        for receiver, found in _leads(code, method)
        if receiver in ctx or receiver == "Transition" or getattr(known.get(receiver), "__name__", "") == "Transition"
    ]


def _annotations(function: Callable[..., Any]) -> Iterable[tuple[str, Any]]:
    found: dict[str, Any] = getattr(function, "__annotations__", {})
    return found.items()


def mentions(function: Callable[..., Any], attribute: str) -> bool:
    """Whether the code uses an attribute of this name."""
    return any(attribute in code.co_names for code in _codes(function))


def attributes_of(function: Callable[..., Any], name: str) -> list[str]:
    """The attributes that the code reads of a parameter by its name, each once; none where the name is given anew."""
    code = getattr(function, "__code__", None)
    return list(dict.fromkeys(_attributes(code, name))) if isinstance(code, CodeType) else []


def called_globals(function: Callable[..., Any]) -> list[Any]:
    """The module-level functions that the code calls by their bare name, as far as they exist by now."""
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
    """The calls of a method with a literal first argument, each with the name of what it is called on."""
    found = []
    instructions = list(dis.get_instructions(code))
    for at, (on, loads, first) in enumerate(zip(instructions, instructions[1:], instructions[2:], strict=False)):
        named = loads.opname in ("LOAD_ATTR", "LOAD_METHOD") and loads.argval == method
        if named and on.opname.startswith("LOAD_") and first.opname == "LOAD_CONST" and isinstance(first.argval, str):
            receiver = on.argval[-1] if isinstance(on.argval, tuple) else on.argval
            names, alone = _call(code, instructions, at)
            found.append((str(receiver), Leads(first.argval, names, alone)))
    return tuple(found)


def _call(code: CodeType, instructions: list[dis.Instruction], at: int) -> tuple[tuple[str, ...] | None, bool]:
    """The keywords of the call whose receiver is loaded at `at`, and whether its result is returned at once."""
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
            literal = one.opname != "CALL_FUNCTION_EX"
            return names if literal else None, instructions[here + 1].opname == "RETURN_VALUE"
        names = ()
    return None, False
