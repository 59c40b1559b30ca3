"""Source of what is loaded: the application's own modules, and the functions of compiled skills."""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from refold.core.authoring.tool import tool_spec
from refold.static.module import FunctionNode, Module, parse


def loaded_module(name: str) -> Module | None:
    """The source of a module that is loaded and is the application's own; None for anybody else's."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "refold":
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not file.endswith(".py") or any(file.startswith(folder) for folder in _installed()):
        return None
    return _parsed(file, name)


def loaded_tool(name: str) -> str | None:
    """A tool's name, from the dotted name of its function. Looks only at what is loaded, and runs nothing."""
    for module, attributes in _splits(name):
        found = sys.modules.get(module)
        for attribute in attributes:
            found = getattr(found, "__dict__", {}).get(attribute)
        if (spec := tool_spec(found)) is not None:
            return spec.name
    return None


def source_of(function: Callable[..., Any]) -> tuple[Module, FunctionNode] | None:
    """Where a function stands in the source; None where there is no source, and for a lambda."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(plain, "__code__", None)
    if code is None:
        return None
    module = _parsed(code.co_filename, plain.__module__)
    for node in ast.walk(module.tree) if module is not None else ():
        if isinstance(node, FunctionNode) and node.name == code.co_name:
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            if first == code.co_firstlineno:
                assert module is not None
                return module, node
    return None


@lru_cache
def _installed() -> tuple[str, ...]:
    return tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


@lru_cache(maxsize=512)
def _parsed(file: str, name: str) -> Module | None:
    try:
        return parse(Path(file).read_text(encoding="utf-8"), _shown(file), name)
    except (OSError, SyntaxError, ValueError):
        return None


def _shown(file: str) -> str:
    here = Path.cwd()
    return str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file


def _splits(name: str) -> Iterator[tuple[str, list[str]]]:
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        yield ".".join(parts[:end]), parts[end:]
