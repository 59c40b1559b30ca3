"""A real browser: the Chromium on PATH, else Debian's `chromium-headless-shell`, unpacked beside the environment.

`python -m tests.services.chromium` gets it, as `make test` does. Nothing is installed, and no right is needed: whatever
libraries of it the machine lacks are unpacked beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv" / "chromium"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium-headless-shell"
OPTIONS = ("--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances")

MISSING = """the tests of the page need Chromium, and cannot get it:
{why}
Put it on PATH: `apt-get install chromium` on Debian; elsewhere https://www.chromium.org/getting-involved/download-chromium"""


class NoChromium(Exception):
    """Neither PATH nor Debian's packages have it; the message says what to do."""


def binary() -> Path:
    """The path of the browser.

    Raises:
        NoChromium: It is not there, and cannot be got.
    """
    kept = HOME / "usr" / "lib" / "chromium" / PACKAGE
    if not kept.exists():
        if found := next(filter(None, map(shutil.which, NAMES)), None):
            return Path(found)
        get()
    return kept


def environment() -> dict[str, str]:
    """The environment in which the browser finds its libraries."""
    # PulseAudio keeps a library in a folder of its own, and looks for that one where it would be installed.
    kept = ("usr/lib/*-linux-gnu", "usr/lib/*-linux-gnu/pulseaudio", "lib/*-linux-gnu")
    folders = [str(folder) for name in kept for folder in HOME.glob(name)]
    known = [path for path in (os.environ.get("LD_LIBRARY_PATH"),) if path]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join([*folders, *known])} if folders else dict(os.environ)


def get() -> None:
    """Get it, unless it is there.

    Raises:
        NoChromium: It is not there, and cannot be got.
    """
    if any(map(shutil.which, NAMES)) or HOME.exists():
        return
    unpack(HOME)


def unpack(home: Path) -> None:
    """Unpack Debian's package, with what it needs that is not installed.

    Raises:
        NoChromium: It cannot be got.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoChromium(MISSING.format(why="this is no Debian, which has it as a package"))
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as name:
        folder = Path(name)
        if not _needed(name):  # a fresh machine has no list of packages
            _run(["apt-get", "update"], name)
        done = _run(["apt-get", "download", *_needed(name)], name)
        packages = list(folder.glob("*.deb"))
        if not any(one.name.startswith(f"{PACKAGE}_") for one in packages):
            raise NoChromium(MISSING.format(why=done.stderr.strip() or "apt-get gave no package"))
        for package in packages:
            _run(["dpkg-deb", "--extract", str(package), f"{name}/unpacked"], name)
        (folder / "unpacked").replace(home)  # at once, or another process might run half of it


def _needed(folder: str) -> list[str]:
    """The package, and those that it needs and the machine lacks."""
    listed = _run(["apt-cache", "depends", "--recurse", *OPTIONS, PACKAGE], folder).stdout
    names = sorted(set(re.findall(r"^([a-z0-9][a-z0-9+.-]+)$", listed, re.MULTILINE)))
    known = _run(["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n"], folder).stdout
    installed = {line.split()[0] for line in known.splitlines() if line.endswith(" installed")}
    # What belongs to the browser must lie beside it, wherever else it is installed.
    return [name for name in names if name not in installed or name.startswith("chromium-")]


def _run(command: Sequence[str], folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    try:
        get()
    except NoChromium as error:
        sys.exit(str(error))
