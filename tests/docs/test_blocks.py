"""Every Python block of the documentation runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks

SHOWN_IN_FULL = {"README.md": ["workflows/hello.py", "workflows/planner.py"]}
"""Pages whose first blocks are files of this repository, word for word."""

NOT_RUN = "# not run: "

SCRIPT = '\nif __name__ == "__main__":'


def with_python() -> list[Path]:
    """The pages that hold Python."""
    return [page for page in PAGES if blocks(page, "python", "py")]


def with_scripts() -> list[Path]:
    """The pages that show a file to be run as a script."""
    return [page for page in PAGES if any(SCRIPT in block.text for block in blocks(page, "python"))]


def application_of(page: Path, folder: Path) -> bool:
    """Whether blocks of the page name files; these are written below the folder."""
    files = [block for block in blocks(page, "python", "py") if block.file is not None]
    for block in files:
        file = folder / str(block.file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.content)
    if files:
        (folder / "workflows" / "__init__.py").touch()
    return bool(files)


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str, Path], None]]:
    """Runs a page, or its tests, in a process of its own."""
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("page_runner.py"))]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        told, answers = runner.stdin, runner.stdout
        assert told is not None
        assert answers is not None

        def run(what: str, folder: Path) -> None:
            print(what, folder, file=told, flush=True)
            assert answers.readline() == "0\n", (folder / "printed").read_text()

        yield run
        told.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", with_python(), ids=lambda page: page.name)
def test_what_a_page_shows_runs(run: Callable[[str, Path], None], page: Path, tmp_path: Path) -> None:
    """
    Blocks that name a file make an application, whose tests pass; the others run as one module, in their order.
    """
    shown = blocks(page, "python", "py")
    if application_of(page, tmp_path):
        # The repository has packages of the same names: the page's own come first in a process of its own.
        run("tests", tmp_path)
    others = [block.text for block in shown if block.file is None and not block.text.startswith(NOT_RUN)]
    whole = tmp_path / "page.py"
    whole.write_text("\n".join(others))
    run("page", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["nobody", "yes"]], ids=" ".join)
@pytest.mark.parametrize("page", with_scripts(), ids=lambda page: page.name)
def test_a_script_tells_its_user_what_is_wrong(page: Path, arguments: list[str], tmp_path: Path) -> None:
    """
    Called without arguments, or without a server, a script that a page shows ends with a message.
    """
    application_of(page, tmp_path)
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "TEMPORAL_ADDRESS": "127.0.0.1:1"}
    for block in blocks(page, "python"):
        if SCRIPT in block.text:
            command = [sys.executable, str(block.file), *arguments]
            ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

            assert ended.returncode in {1, 2}, block.file
            assert ended.stderr.strip(), block.file
            assert "Traceback" not in ended.stderr, block.file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_that_does_not_run_says_why(page: Path) -> None:
    """
    `# not run: ` is followed by the reason.
    """
    left_out = [block for block in blocks(page, "python", "py") if block.text.startswith("# not run")]

    assert [block.line for block in left_out if len(block.text.splitlines()[0]) <= len(NOT_RUN)] == []


@pytest.mark.parametrize(("page", "file"), [(page, file) for page, files in SHOWN_IN_FULL.items() for file in files])
def test_the_readme_shows_the_smallest_skill_in_full(page: str, file: str) -> None:
    """
    What the first screen shows is the file in the repository, of 15 lines at most without what is empty.
    """
    text = (ROOT / file).read_text()

    assert text in [block.text for block in blocks(ROOT / page, "python")]
    assert len([line for line in text.splitlines() if line.strip()]) <= 15
