"""Skills whose code has changed since their tasks were recorded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from temporalio.client import WorkflowHistory

from refold.temporal.data.storage import Folder
from refold.temporal.replay.replaying import Replayed, Replays
from tests.records import replaying

ROOT = Path(__file__).parents[3]
_numbers = count(1)


def changed(folder: Path, module: str, *changes: tuple[str, str]) -> ModuleType:
    """A copy of a module with other code, in a folder that modules are imported from.

    Args:
        folder: Where.
        module: The module; its file is below the repository's root.
        changes: What is replaced, and by what.
    """
    text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    # What a model's answer must fit is named by module and class.
    text = text.replace("\n\n\n@flow_skill", "\n\nfrom workflows.refund import Advice\n\n@flow_skill")
    name = f"changed_{next(_numbers)}"
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(name)


async def each(histories: list[Any], *skills: Any, values: Path) -> list[Replayed]:
    """What the replays of histories come to."""

    async def given() -> AsyncIterator[WorkflowHistory]:
        for one in histories:
            yield one

    return [one async for one in Replays(skills, storage=Folder(values)).each(given())]


def recorded(name: str) -> WorkflowHistory:
    """A recorded history."""
    return replaying.read(replaying.HISTORIES / f"{name}.json.gz")[0]


def forget(modules: set[str]) -> None:
    """Forget the modules that were imported since."""
    for name in [name for name in sys.modules if name.startswith("changed_") and name not in modules]:
        del sys.modules[name]
