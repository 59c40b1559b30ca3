"""The syntax of Python files, for tests that read the code."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def parsed(file: Path) -> ast.Module:
    """A file's syntax. No garbage is collected meanwhile: if what an earlier test has left behind is told with its
    traceback, that parses, too, and Python 3.11.7 takes the one for a fault of the other (python/cpython#106905)."""
    collects = gc.isenabled()  # not while tests are collected
    gc.disable()
    try:
        return ast.parse(file.read_text(encoding="utf-8"), str(file))
    finally:
        if collects:
            gc.enable()
