"""What functions do with what a module holds."""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from pydantic_core import _pydantic_core

from refold.temporal.worker.sandboxed.uses import Uses

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
    "', '.join(HELD)",
    "enumerate(HELD, 1)",
    "zip(x, HELD)",
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
    "x.update(HELD)",
    "x.join(HELD)",
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
    (folder / "made_up.py").write_text(source)
    spec = spec_from_file_location("made_up", folder / "made_up.py")
    assert spec is not None
    return module_from_spec(spec)


def only_read(module: ModuleType, *others: ModuleType) -> bool:
    return Uses([module, *others]).only_read("HELD")


@pytest.mark.parametrize("use", READING)
def test_what_only_reads(use: str, tmp_path: Path) -> None:
    """
    Nothing that a function does with the name hands on what could be changed.
    """
    assert only_read(module(tmp_path, f"async def f(x, y):\n    return {use}\n"))


@pytest.mark.parametrize("use", [*(f"return {use}" for use in OTHERWISE), *CHANGING])
def test_any_other_use_may_change_it(use: str, tmp_path: Path) -> None:
    """
    Whatever is not known to read counts, as does a text that says the name.
    """
    assert not only_read(module(tmp_path, f"async def f(x, y):\n    {use}\n"))


@pytest.mark.parametrize("source", ["HELD.append(1)", "class A:\n    HELD.append(1)", "def f(x=HELD): pass"])
def test_what_runs_on_import_is_over_before_modules_are_shared(source: str, tmp_path: Path) -> None:
    """
    A default that holds it is found where the function is looked at.
    """
    assert only_read(module(tmp_path, source))


def test_a_module_without_source_may_change_anything(tmp_path: Path) -> None:
    """
    Its code cannot be read: neither what was never written to a file, nor what is no Python.
    """
    assert not only_read(ModuleType("made_up"))
    assert not only_read(module(tmp_path, "def HELD"))


@pytest.mark.parametrize("kind", ["empty", "namespace", "extension"])
def test_a_module_without_functions_changes_nothing(kind: str, tmp_path: Path) -> None:
    """
    A package's empty `__init__.py`, a folder that is one without it, and a module that is not written in Python.
    """
    held = module(tmp_path, "HELD = {}")
    (tmp_path / "parts").mkdir()
    spec = PathFinder.find_spec("parts", [str(tmp_path)])
    assert spec is not None
    other = {"empty": module(tmp_path, ""), "namespace": module_from_spec(spec), "extension": _pydantic_core}[kind]

    assert only_read(held, other)


SETTING = [
    "Box.n = 1",
    "Box.n += 1",
    "del Box.n",
    "made_up_other.N += 1",
    "made_up_other.Box.n = 1",
    "Box.items[0].n = 1",
    "type(box).n = 1",
    "box.__class__.n = 1",
    "setattr(Box, 'n', 1)",
    "f.n = 1",
    "global made; made = Box(); made.n = 1",
    "def g():\n        Box.n = 1",
]


@pytest.mark.parametrize("code", SETTING)
def test_a_function_that_sets_what_others_see_is_named(code: str, tmp_path: Path) -> None:
    """
    An attribute of a class, of a module or of a function.
    """
    found = Uses([module(tmp_path, f"class Box: n = 0\ndef f(box):\n    {code}\n")]).setter("made_up")

    assert found == ("f.g" if "def g" in code else "f")


@pytest.mark.parametrize(
    "source",
    [
        "class Box:\n    @classmethod\n    def f(cls): cls.n = 1",
        "@flow_skill(id='s')\nclass Box:\n    def f(self): self.n = 1",
        "@refold.flow_skill(id='s')\nclass Box:\n    async def f(self):\n        def g(): self.n = 1",
    ],
)
def test_classes_and_skills_are_seen_by_all_tasks(source: str, tmp_path: Path) -> None:
    """
    By whatever name a method calls them.
    """
    assert str(Uses([module(tmp_path, source)]).setter("made_up")).startswith("Box.f")


@pytest.mark.parametrize(
    "source",
    [
        "class Box:\n    def f(self): self.n = 1",
        "@flow_skill(id='s')\nclass Box:\n    def __init__(self): self.n = 1",
        "def f(box): box.n = 1; box.items[0].n = 2",
        "def f():\n    box = Box()\n    def g(): box.n = 1",
        "class Box:\n    def __post_init__(self): object.__setattr__(self, 'n', 1)",
        "Box.n = 1",
        "def mark(f):\n    def g(): f()\n    g.tag = 1\n    return g",
        "class Box:\n    def f(self): pass\n    f.short = 1",
        "def f(box): setattr(box, 'n', 1)",
    ],
)
def test_what_a_task_makes_is_its_own(source: str, tmp_path: Path) -> None:
    """
    And what happens on import is over before modules are shared.
    """
    assert Uses([module(tmp_path, source)]).setter("made_up") is None
