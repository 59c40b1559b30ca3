"""What is installed is what was meant: the wheel holds the library alone, and the lock is exact."""

import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()

RUNTIME: list[str] = [
    *PYPROJECT["project"]["dependencies"],
    *chain.from_iterable(PYPROJECT["project"]["optional-dependencies"].values()),
]
DEVELOPMENT: list[str] = PYPROJECT["dependency-groups"]["dev"]


def test_the_wheel_holds_the_library_alone(tmp_path: Path) -> None:
    """
    Skills, scripts and tests of the repository are not installed; the marker for type checkers is.
    """
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.split("/")[0] for name in names} == {"refold", f"refold-{PYPROJECT['project']['version']}.dist-info"}
    assert "refold/py.typed" in names


def test_the_readme_is_the_description() -> None:
    """
    The package's page shows the README as soon as there is one.
    """
    assert ("readme" in PYPROJECT["project"]) == (ROOT / "README.md").exists()


def test_dependencies_are_bounded() -> None:
    """
    Each runtime dependency has a lower bound that was tried and an upper one where its API may break.
    """
    for line in RUNTIME:
        operators = {specifier.operator for specifier in Requirement(line).specifier}
        assert operators == {">=", "<"}, line


def test_the_lock_is_exact() -> None:
    """
    One version for each package, and no word about where it comes from.
    """
    lines = [line for line in LOCK.splitlines() if line and not line.lstrip().startswith("#")]
    for line in lines:
        requirement = Requirement(line)
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], line
        # An extra would forbid the lock's use as a constraint, which is what the Dockerfile does.
        assert not requirement.extras, line
    assert "://" not in LOCK
    assert not re.search(r"^\s*-", LOCK, re.MULTILINE)


def test_the_lock_covers_what_pyproject_asks_for() -> None:
    """
    Whoever adds a dependency runs `make lock`.
    """
    locked = {name.lower(): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", LOCK, re.MULTILINE)}
    for requirement in map(Requirement, [*RUNTIME, *DEVELOPMENT]):
        assert requirement.specifier.contains(locked[requirement.name.lower()]), requirement
