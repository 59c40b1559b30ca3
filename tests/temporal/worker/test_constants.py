"""Which lists, dicts and sets of a module no function changes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from refold.temporal.worker.sandboxed.constants import only_read

READING = [
    "len(HELD)",
    "HELD[x]",
    "HELD[1:]",
    "x in HELD",
    "HELD == x",
    "HELD + x",
    "x | HELD",
    "HELD.get(x, 1)",
    "[*HELD, x]",
    "{**HELD}",
    "x(*HELD, **HELD)",
    "[a for a in HELD]",
    "{a: b for a, b in HELD.items() if b in HELD}",
    "sorted(HELD, key=x)",
    "not HELD",
    "1 if HELD else 2",
    "f'{HELD}'",
    "other.HELD[0]",
    "lambda: HELD[0]",
]
OTHERWISE = [
    "HELD",
    "x(HELD)",
    "x(a=HELD)",
    "HELD or x",
    "[HELD]",
    "{x: HELD, **x}",
    "{HELD: x}",
    "HELD.append",
    "HELD.append(x)",
    "HELD.get",
    "HELD.get.x()",
    "x.get(HELD)",
    "(y := HELD)",
    "lambda: HELD",
    "lambda x=HELD: x",
    "other.HELD.append(x)",
    "other.HELD",
    "getattr(other, 'HELD')",
    "globals()['HELD']",
    "next(a for a in x(HELD))",
    "sorted(x, key=HELD)",
    "max(HELD, x)",
    "sum(x, HELD)",
    "HELD(x)",
    "await HELD",
    "[HELD for a in x]",
    "[x for x.HELD in y]",
]
CHANGING = [
    "HELD[0] = x",
    "del HELD[0]",
    "HELD += x",
    "HELD[0] += x",
    "for HELD[0] in x: pass",
    "for a in x: HELD.add(a)",
    "x = HELD",
    "return HELD",
    "yield HELD",
    "with HELD: pass",
    "match HELD:\n        case a: pass",
    "def inner(a=HELD): pass",
    "other.HELD = x",
    "global HELD; HELD = x",
    "def sorted(x): pass\n    return sorted(HELD)",
    "from x import y as len; return len(HELD)",
]


def module(folder: Path, source: str) -> ModuleType:
    """A module with this source, which is not run."""
    made = ModuleType("made_up")
    made.__file__ = str(folder / "made_up.py")
    (folder / "made_up.py").write_text(source)
    return made


@pytest.mark.parametrize("use", READING)
def test_what_only_reads(use: str, tmp_path: Path) -> None:
    """
    Nothing that a function does with the name hands on what could be changed.
    """
    assert only_read("HELD", [module(tmp_path, f"async def f(x, y):\n    return {use}\n")])


@pytest.mark.parametrize("use", [*(f"return {use}" for use in OTHERWISE), *CHANGING])
def test_any_other_use_may_change_it(use: str, tmp_path: Path) -> None:
    """
    Whatever is not known to read counts, as does a text that says the name.
    """
    assert not only_read("HELD", [module(tmp_path, f"async def f(x, y):\n    {use}\n")])


@pytest.mark.parametrize("source", ["HELD.append(1)", "class A:\n    HELD.append(1)", "def f(x=HELD): pass"])
def test_what_runs_on_import_is_over_before_modules_are_shared(source: str, tmp_path: Path) -> None:
    """
    A default that holds it is found where the function is looked at.
    """
    assert only_read("HELD", [module(tmp_path, source)])


def test_a_module_without_source_may_change_anything(tmp_path: Path) -> None:
    """
    Its code cannot be read: neither what was never written to a file, nor what is no Python.
    """
    assert not only_read("HELD", [ModuleType("made_up")])
    assert not only_read("HELD", [module(tmp_path, "def")])
