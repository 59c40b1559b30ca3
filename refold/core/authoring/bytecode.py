"""What a function's code says literally, read from its bytecode: which steps it goes to, what it calls by name.

Only the code object is read: no source file, and nothing is run. Code objects are equal where their code is, so what
one says is read once, however often its module is imported (in Temporal's sandbox, for every task).
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any


def literal_gotos(function: Callable[..., Any]) -> list[str]:
    """The step names that stand as literals in `goto("name", …)`, in order, each once."""
    return list(dict.fromkeys(name for code in _codes(function) for name in _first_arguments(code, "goto")))


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
def _first_arguments(code: CodeType, method: str) -> tuple[str, ...]:
    return tuple(
        following.argval
        for this, following in pairwise(dis.get_instructions(code))
        if this.opname in ("LOAD_METHOD", "LOAD_ATTR") and this.argval == method
        if following.opname == "LOAD_CONST" and isinstance(following.argval, str)
    )
