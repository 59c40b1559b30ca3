""".ci/run runs again what failed, and everything where it is not known what would have failed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAKEFILE = f"""
test:
	{sys.executable} -m pytest -q -p tests.ended $(subst -n 0,,$(ARGS)); tested=$$?; test ! -e types -a $$tested = 0
sweep:
"""
CONFTEST = """
from pathlib import Path

FIRST = not Path("second").exists()
Path("second").touch()

def pytest_runtest_logreport(report):
    if FIRST and Path("breaks").exists() and report.nodeid.endswith("test_passes"):
        raise RuntimeError("a plugin breaks")
"""
TESTS = """
from conftest import FIRST

def test_once():
    assert not FIRST

def test_passes():
    pass

def test_last():
    assert {last}
"""


def ci(folder: Path, last: str) -> subprocess.CompletedProcess[str]:
    """Run it on three tests: one that fails the first time, one that passes, and a last one."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    for name, text in {"Makefile": MAKEFILE, "conftest.py": CONFTEST, "test_it.py": TESTS.format(last=last)}.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [folder / ".ci" / "run"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_what_failed_runs_again_alone(tmp_path: Path) -> None:
    """
    A test that passes the second time is named at the end.
    """
    done = ci(tmp_path, last="True")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert done.stdout.endswith('Failed once, and passed the second time:\n"test_it.py::test_once"\n')


@pytest.mark.slow
def test_after_a_run_that_broke_off_everything_runs_again(tmp_path: Path) -> None:
    """
    A failure that the first run did not come to is found.
    """
    (tmp_path / "breaks").touch()
    done = ci(tmp_path, last="False")

    assert done.returncode != 0
    assert "INTERNALERROR" in done.stdout
    assert "1 failed, 2 passed" in done.stdout


@pytest.mark.slow
def test_where_no_test_failed_the_goal_runs_again(tmp_path: Path) -> None:
    """
    What failed beside pytest fails again, and is said.
    """
    (tmp_path / "types").touch()
    (tmp_path / "second").touch()
    done = ci(tmp_path, last="True")

    assert done.returncode != 0
    assert done.stdout.count("3 passed") == 2


def test_a_run_without_a_cache_ends_as_its_tests_do(tmp_path: Path) -> None:
    """
    How it ended is written nowhere, and breaks nothing.
    """
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("def test_passes():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.ended", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
