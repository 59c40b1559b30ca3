"""Deploys: the source of a skill, with some of its text changed, as a module of its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from tests.temporal.recorded import purchase


def changed(folder: Path, changes: Mapping[str, str], of: ModuleType = purchase) -> ModuleType:
    """A module with another text; `folder` is on the import path."""
    source = Path(str(of.__file__)).read_text()
    for was, is_now in changes.items():
        assert was in source, was
        source = source.replace(was, is_now)
    name = f"deployed_{uuid4().hex[:8]}"
    (folder / f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    return importlib.import_module(name)
