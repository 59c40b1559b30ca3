"""`refold check` in a folder of its own, in this process."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refold.cli.app import app

RIGHT = Path(__file__).parent / "right_app"


@dataclass(frozen=True)
class Checked:
    """What `refold check` said."""

    exit: int
    found: list[dict[str, object]]


Check = Callable[..., Checked]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a new one, whose packages hide those of this repository. Nothing of it stays loaded."""
    folder = tmp_path / "app"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(sys.modules)
    for name in [name for name in before if name.partition(".")[0] in ("activities", "workflows", "client", "worker")]:
        del sys.modules[name]
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def folder(empty: Path) -> Path:
    """The application that has no mistake, in the current folder."""
    shutil.copytree(RIGHT, empty, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return empty


@pytest.fixture
def checked(folder: Path) -> Check:
    """`refold check` in that folder."""
    return check


def check(*words: str) -> Checked:
    """Run `refold check` in the current folder."""
    done = CliRunner().invoke(app, ["check", *words, "--json"])
    return Checked(done.exit_code, [json.loads(line) for line in done.stdout.splitlines()])
