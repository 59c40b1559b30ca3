"""Why a module cannot be imported, in one line, with the way out where Python or pydantic do not say it."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

import refold
from refold.core.errors import brief
from refold.static.finding import shown

AS_A_SCRIPT = 'what a script does stands under `if __name__ == "__main__":`'
"""The way out where a module runs what only a script may run."""

_UNKNOWN_ARGUMENT = re.compile(r"(?:(\w+)\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_PUBLIC = ("refold", "refold.agent", "refold.temporal", "refold.effects", "refold.testing")


def told(error: BaseException, root: Path) -> str:
    """An error at import: its type, what it says, and the way out.

    Args:
        error: What an import raised.
        root: The folder of the application that was on the import path for it.
    """
    said = _unfit(error) if isinstance(error, ValidationError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {said}{_way_out(error, root)}"


def _unfit(error: ValidationError) -> str:
    """Which fields of which model do not fit, and what came for them."""
    found, fields = [], _fields(error)
    for one in error.errors(include_url=False, include_context=False):
        where = ".".join(map(str, one["loc"]))
        if one["type"] == "extra_forbidden" and fields and len(one["loc"]) == 1:
            found.append(f"it has no field {where!r}; {_meant(where, fields, 'its fields are')}")
        else:
            found.append(f"{where}={brief(one['input'])}: {one['msg']}" if where else one["msg"])
    return f"{error.title}: {'; '.join(found)}"


def _fields(error: ValidationError) -> Collection[str]:
    """The fields of the model whose constructor raised the error; none if something else did."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    made = type(frames[-1].f_locals.get("self")) if frames else None
    return made.model_fields if isinstance(made, type) and issubclass(made, BaseModel) else ()


def _known_arguments(name: str, given: str) -> str:
    try:
        known = [one for one in inspect.signature(_public(name)).parameters if one not in {"self", "function"}]
    except (TypeError, ValueError):
        return ""  # a function of the application
    return f"; {_meant(given, known, 'it takes')}"


def _public(name: str) -> Any:
    """What refold calls by this name, as far as it is imported; None if there is nothing."""
    modules = (sys.modules.get(module) for module in _PUBLIC)
    return next((getattr(module, name) for module in modules if name in getattr(module, "__all__", ())), None)


def _meant(given: str, known: Collection[str], all_of_them: str) -> str:
    near = difflib.get_close_matches(given, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"{all_of_them}: {', '.join(known)}"


def _way_out(error: BaseException, root: Path) -> str:
    """How to mend the error, if its message does not say; else empty."""
    match error:
        case ModuleNotFoundError(name=str(name)) if shadowing := _shadowing(name.partition(".")[0], root):
            folder = shown(root / name.partition(".")[0])
            return f"; {shown(shadowing)} comes before the folder {folder}: add an empty {folder}/__init__.py"
        case ModuleNotFoundError(name=str(name)):
            return f"; correct the name, or install it (looked in {shown(root)}/ and among what is installed)"
        case ImportError(name=str(name)) if name in sys.modules:
            asked = re.search(r"cannot import name '(\w+)'", str(error))
            near = difflib.get_close_matches(asked[1], dir(sys.modules[name]), 1) if asked else []
            return f"; did you mean {near[0]!r}?" if near else ""
        case NameError(name=str(name)) if name in refold.__all__:
            return f"; write `from refold import {name}`"
        case TypeError() if "flow_skill() takes 0 positional arguments" in str(error):
            return "; write `@flow_skill()`, with parentheses"
        case TypeError() if (call := _UNKNOWN_ARGUMENT.search(str(error))) and "Did you mean" not in str(error):
            return _known_arguments(call[1] or call[2], call[3])
        case SystemExit():
            return f"; {AS_A_SCRIPT}"
        case RuntimeError() if "running event loop" in str(error):  # the command line imports within a loop
            return f"; {AS_A_SCRIPT}"
        case _:
            return ""


def _shadowing(package: str, root: Path) -> str:
    """The file of another package of this name, which Python prefers to a folder without `__init__.py`; else empty."""
    file = getattr(sys.modules.get(package), "__file__", None)
    own = root / package
    return file if file and own.is_dir() and not (own / "__init__.py").exists() else ""
