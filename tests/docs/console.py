"""Types what the console blocks of a page say, beside a running `refold dev`.

`python -m tests.docs.console` writes what is really printed into the pages.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from refold.cli.app import app
from tests.docs.pages import ROOT, Command, blocks, commands, normal

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
OPERATE = ROOT / "docs" / "operate.md"

NOT_TYPED = {
    "make demo": "tests/client/test_demo.py runs it",
    "make test": "it is what runs this",
    "pip install": "tests/test_package.py builds what it installs",
    "refold dev": "it is running beside",
    "python -m pytest": "test_blocks.py runs these tests",
}
"""What is not typed, and why."""

PATIENCE_S = 60.0

_IN_PROCESS = {"start", "answer", "cancel", "show", "list", "watch", "journal", "at"}
"""Verbs that import no application, so that no process of their own is needed."""


def typed(page: Path) -> list[Command]:
    """The commands of a page that are typed here."""
    return [one for one in commands(page) if not one.line.startswith(tuple(NOT_TYPED))]


def compared(command: Command) -> bool:
    """Whether what it prints is on the page: not where a comment says what there is to know of it."""
    return " # " not in command.line


@contextmanager
def application(page: Path) -> Iterator[Path]:
    """The folder that a page is about: the repository, or a new one with the files that the page shows."""
    if page == README:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for block in blocks(page, "python"):
            if block.file is not None:
                file = folder / block.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.content)
        (folder / "workflows" / "__init__.py").touch()
        yield folder


@contextmanager
def dev(folder: Path, values: Path) -> Iterator[dict[str, str]]:
    """`refold dev` in this folder; the environment that its second terminal has."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "REFOLD_"))}
    environ |= {
        "REFOLD_STORAGE": str(values),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    command = [sys.executable, "-m", "refold.cli", "dev", "--json"]
    # Its log is nobody's here, and a pipe that nobody reads would stop it.
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, "refold dev did not come up"
            yield environ | {"TEMPORAL_ADDRESS": json.loads(line)["address"]}
        finally:
            process.send_signal(signal.SIGTERM)


def type_in(line: str, folder: Path, environ: dict[str, str]) -> str:
    """Type one command; what a terminal would show."""
    words = shlex.split(line, comments=True)
    if words[0] == "refold" and words[1] in _IN_PROCESS:
        return CliRunner().invoke(app, words[1:], env=environ).output
    done = subprocess.run(
        line,
        shell=True,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def printed(command: Command, folder: Path, environ: dict[str, str], *, within_s: float) -> str:
    """What a command prints, times and ids as pages write them; typed again, for so long, until the page says so."""
    until = time.monotonic() + within_s
    while True:
        text = normal(type_in(command.line, folder, environ))
        if text == "\n".join(command.printed) or time.monotonic() >= until:
            return text


def told(page: Path, values: Path) -> list[tuple[Command, str]]:
    """Each command of a page with what is really printed, times and ids as pages write them."""
    with application(page) as folder, dev(folder, values) as environ:
        found: list[tuple[Command, str]] = []
        for one in typed(page):
            # A `sleep` is long enough for whoever reads the page, and not for every machine.
            slept = bool(found) and found[-1][0].line.startswith("sleep ")
            found.append((one, printed(one, folder, environ, within_s=PATIENCE_S if slept else 0)))
        for query in queries():
            # Only that the server understands it: what it finds is another matter.
            subprocess.run(query, shell=True, env=environ, check=True, capture_output=True)
        return found


def queries() -> list[str]:
    """The filters over tasks that operators are shown."""
    return [one.line for one in commands(OPERATE) if one.line.startswith("temporal workflow ")]


def _write(page: Path) -> None:
    with tempfile.TemporaryDirectory() as values:
        found = told(page, Path(values))
    text = page.read_text()
    at = 0
    for command, printed in found:
        if not compared(command):
            continue
        shown = f"$ {command.line}\n" + "".join(f"{line}\n" for line in command.printed)
        at = text.index(shown, at)
        fresh = f"$ {command.line}\n" + (f"{printed}\n" if printed else "")
        text = text[:at] + fresh + text[at + len(shown) :]
        at += len(fresh)
    page.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:] or [str(README), str(TUTORIAL)]:
        _write(Path(name).resolve())
