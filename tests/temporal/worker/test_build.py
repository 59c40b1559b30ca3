"""The build id of a worker whose code nobody has named."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
import zipimport
from pathlib import Path
from types import ModuleType

import pytest
from temporalio.client import Client

from refold.temporal import RefoldPlugin, make_worker
from refold.temporal.worker.build import build_of, build_of_process
from workflows import hello

SKILL = 'LIMIT = 100\n\n\ndef ask(cents):\n    return f"Pay {cents}?" if cents > LIMIT else ""\n'


def loaded(folder: Path, text: str, *, archive: bool = False) -> ModuleType:
    """A module `skill` with this text, as imported from a folder or an archive in it."""
    folder.mkdir(exist_ok=True)
    path = folder / "skill.py"
    path.write_text(text)
    if archive:
        with zipfile.ZipFile(folder / "skill.zip", "w") as file:
            file.write(path, "skill.py")
        spec = zipimport.zipimporter(str(folder / "skill.zip")).find_spec("skill")
    else:
        spec = importlib.util.spec_from_file_location("skill", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("archive", [False, True], ids=["in a folder", "in an archive"])
@pytest.mark.parametrize(
    ("before", "after"),
    [("Pay {cents}?", "Pay {cents} cents?"), ("cents > LIMIT", "cents >= LIMIT"), ("LIMIT = 100", "LIMIT = 500")],
    ids=["a text in a function", "a condition in a function", "a number at the top"],
)
def test_changed_code_is_another_build(tmp_path: Path, before: str, after: str, archive: bool) -> None:
    """
    The SDK's own default reads a module's top level alone, for which two versions of a step are the same.
    """
    assert before in SKILL
    old = loaded(tmp_path / "old", SKILL, archive=archive)
    new = loaded(tmp_path / "new", SKILL.replace(before, after), archive=archive)

    assert build_of({"skill": old}) != build_of({"skill": new})


def test_the_same_code_is_the_same_build_wherever_it_stands(tmp_path: Path) -> None:
    """
    Workers of one release may stand in other folders, on other hosts. What came from no file counts for nothing, and
    nor does a module that fails when it is asked.
    """

    class Odd(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError(name)

    none: dict[str, ModuleType] = {"sys": sys, "odd": Odd("odd"), "made": ModuleType("made")}
    here, there = loaded(tmp_path / "here", SKILL), loaded(tmp_path / "there", SKILL)

    assert build_of({"skill": here}) == build_of({"skill": there, **none})
    assert build_of({"skill": here}) != build_of({"other": here})


async def test_a_worker_is_given_a_build_unless_it_names_one(client: Client) -> None:
    """
    The program's own name counts, also that of a version of a deployment, beside which the SDK takes no build.
    """

    def config(**given: str) -> dict[str, object]:
        queue = f"builds-{len(given)}"
        return dict(make_worker(client, RefoldPlugin([hello]), task_queue=queue, **given).config(active_config=True))

    assert config()["build_id"] == build_of_process()
    assert config(build_id="r1")["build_id"] == "r1"
    assert config(deployment="shop", build_id="v1")["build_id"] is None
