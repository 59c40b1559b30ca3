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
from refold.core.steps.table import Step
from refold.static.code.module import FunctionNode, Module, bound_by, parse, top_level
from refold.static.code.sources import text_of
from refold.static.finding import shown


def loaded_module(name: str) -> Module | None:
    """The source of a loaded module of the application; None for modules of other packages."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "refold":
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not file.endswith(".py") or is_installed(file):
        return None
    return _parsed(file, name)


def loaded_tool(name: str) -> str | None:
    """A tool's name, from the dotted name of its function. Looks only at what is loaded, and runs nothing."""
    return next((spec.name for one in _loaded(name) if (spec := tool_spec(one)) is not None), None)


def is_loaded_step(name: str) -> bool:
    """Whether a method of this dotted name is a step. Looks only at what is loaded, and runs nothing."""
    return any(isinstance(getattr(one, "__refold_step__", None), Step) for one in _loaded(name))


def _loaded(name: str) -> Iterator[object]:
    """What a dotted name stands for in a loaded module."""
    for module, attributes in _splits(name):
        found: object = sys.modules.get(module)
        for attribute in attributes:
            found = getattr(found, "__dict__", {}).get(attribute)
        yield found


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


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python, refold or an installed package, and so not to the application."""
    # By name too: `pip install --user` and Debian have folders of their own.
    by_name = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return by_name or file.startswith(("<", *_installed()))


@lru_cache
def _installed() -> tuple[str, ...]:
    refold = str(Path(__file__).parents[2])
    folders = (refold, *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")))
    return tuple(f"{folder}/" for folder in folders)


@lru_cache(maxsize=512)
def _parsed(file: str, name: str) -> Module | None:
    try:
        return parse(text_of(Path(file)), shown(file), name)
    except (OSError, SyntaxError, ValueError):
        return None


def _splits(name: str) -> Iterator[tuple[str, list[str]]]:
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        yield ".".join(parts[:end]), parts[end:]


def place_of(about: object, module: str) -> tuple[str, int]:
    """The file and line where an object of a loaded module is defined, assigned or created.

    For a path: that file.
    """
    if isinstance(about, Path):
        return shown(about), 1
    plain = inspect.unwrap(about) if callable(about) and not isinstance(about, type) else about
    if (code := getattr(plain, "__code__", None)) is not None:
        return shown(code.co_filename), code.co_firstlineno
    file = getattr(sys.modules.get(module), "__file__", None)
    parsed = None if file is None else _parsed(file, module)
    if parsed is None:
        return file or module, 1
    names = [name for name, value in vars(sys.modules[module]).items() if value is about]
    for statement in top_level(parsed.tree.body):
        if bound_by(statement) & set(names):
            return parsed.file, statement.lineno
    made = [
        one.lineno
        for one in ast.walk(parsed.tree)
        if isinstance(one, ast.Call) and "workflow_for" in ast.unparse(one.func)
    ]
    return parsed.file, min(made, default=1)
