"""What a function's code says literally, read from its bytecode: which steps it goes to, what it calls by name.

Only the code object is read: no source file, and nothing is run.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import CodeType
from typing import Any


def literal_gotos(function: Callable[..., Any]) -> list[str]:
    """The step names that stand as literals in `goto("name", …)`, in order, each once."""
    return list(dict.fromkeys(name for code in _codes(function) for name in _first_argument(code, "goto")))


def mentions(function: Callable[..., Any], attribute: str) -> bool:
    """Whether the code uses an attribute of this name."""
    return any(attribute in code.co_names for code in _codes(function))


def called_globals(function: Callable[..., Any]) -> list[Any]:
    """The module-level functions that the code calls by their bare name, as far as they exist by now."""
    known = getattr(function, "__globals__", {})
    # The interpreter marks a global that is loaded to be called with the lowest bit of the argument.
    names = [
        instruction.argval
        for code in _codes(function)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "LOAD_GLOBAL" and instruction.arg is not None and instruction.arg & 1
    ]
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _codes(function: Callable[..., Any]) -> Iterator[CodeType]:
    code = getattr(function, "__code__", None)
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(const for const in code.co_consts if isinstance(const, CodeType))


def _first_argument(code: CodeType, method: str) -> Iterator[str]:
    instructions = list(dis.get_instructions(code))
    for this, following in pairwise(instructions):
        called = this.opname in ("LOAD_METHOD", "LOAD_ATTR") and this.argval == method
        if called and following.opname == "LOAD_CONST" and isinstance(following.argval, str):
            yield following.argval
