"""What a worker refuses when it starts; `refold check` asks the same function, and `tests/static` has its sentences."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from refold import DefinitionError, tool
from refold.static import parts_of
from refold.temporal import RefoldPlugin
from workflows import planner, refund

HEAD = """
from refold import Content, Ctx, Step, Transition, flow_skill, step, table
from refold.temporal import workflow_for
"""
SKILL = """
@flow_skill(id="{id}")
class {name}:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete()
"""

Make = Callable[[str], ModuleType]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a module of some source."""
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []

    def made(source: str) -> ModuleType:
        names.append(f"refused_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(HEAD + source)
        return __import__(names[-1])

    yield made
    for name in names:
        sys.modules.pop(name, None)


@tool(effect="idempotent")
def void(result: str) -> None:
    """Undo a payment."""


@tool(effect="compensate", undo=void)
def pay(cents: int) -> str:
    """Pay."""
    return str(cents)


def refused(skills: list[Any], *tools: Callable[..., Any]) -> str:
    """What a plugin says of its skills and tools, as it is made or as its worker starts; empty where it takes them."""
    try:
        RefoldPlugin(skills, tools, model="scripted:demo").refuse_unfit()
    except DefinitionError as error:
        return str(error)
    return ""


async def test_what_fits_starts(make: Make) -> None:
    """
    Skills with their workflows, tools with their undo; and a module that is imported once more by the sandbox.
    """
    module = make(f"{SKILL.format(id='a', name='A')}\nAWorkflow = workflow_for(A)\n")

    assert refused([module, module.A, module.AWorkflow], pay, void) == ""


async def test_a_class_without_its_decorator_is_a_skill_by_its_workflow(make: Make) -> None:
    """
    A worker, its class given alone, and the command line, which lists an application's skills, agree about it.
    """
    bare = SKILL.format(id="", name="Bare").replace('@flow_skill(id="")', "")
    module = make(
        f"{bare}\nclass Heir(Bare): ...\nBareWorkflow = workflow_for(Bare)\nHeirWorkflow = workflow_for(Heir)\n"
    )

    assert list(parts_of([module]).skills) == ["bare", "heir"]
    assert refused([module]) == refused([module.Bare, module.Heir]) == ""


@pytest.mark.parametrize(
    ("more", "line"),
    [
        pytest.param("", "LateWorkflow = workflow_for(Late)", id="class"),
        pytest.param(
            "\ndef begin(ctx: Ctx): return ctx.complete()\nROWS = table('two_words', Step('begin', begin).start())\n"
            "LateWorkflow = workflow_for(Late)\n",
            "TwoWordsWorkflow = workflow_for(ROWS)",
            id="table",
        ),
    ],
)
async def test_the_way_out_of_a_missing_workflow_works(more: str, line: str, make: Make) -> None:
    """
    The line that the error says to add is the one that makes the skill served.
    """
    source = SKILL.format(id="late", name="Late") + more

    said = refused([make(source)])

    assert f"add `{line}` there" in said
    assert refused([make(f"{source}\n{line}\n")]) == ""


async def test_the_way_out_of_a_misnamed_workflow_works(make: Make) -> None:
    """
    Both lines that the error offers serve the skill.
    """
    source = SKILL.format(id="late", name="Late")

    said = refused([make(f"{source}\nSERVED = workflow_for(Late)\n")])

    for line in ("LateWorkflow = workflow_for(Late)", "SERVED = workflow_for(Late, name='SERVED')"):
        assert line.replace("Late,", "...,").replace("(Late)", "(...)") in said
        assert refused([make(f"{source}\n{line}\n")]) == ""


async def test_a_module_whose_name_python_cannot_import_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A worker can load `my-skill.py`, but the sandbox loads it again by an import statement.
    """
    monkeypatch.syspath_prepend(tmp_path)
    source = f"{HEAD}{SKILL.format(id='late', name='Late')}\nLateWorkflow = workflow_for(Late)\n"
    (tmp_path / "my-skill.py").write_text(source)

    said = refused([importlib.import_module("my-skill")])

    assert "its module is named 'my-skill', which no import statement can name: rename the file" in said


async def test_what_a_registered_tool_or_agent_is_made_with_is_registered_too() -> None:
    """
    An undo that is missing would be noticed when it is needed; an agent's tool, when the model asks for it.
    """
    assert "its undo, the tool 'void', is not registered" in refused([refund], pay)
    assert "it is made with the tool 'weekday', which is not registered; registered: pay" in refused(
        [planner], pay, void
    )


async def test_a_replay_needs_no_tools() -> None:
    """
    A plugin that is no worker's, such as a replayer's, is made without the tools.
    """
    assert RefoldPlugin([planner], model="scripted:demo").skill_ids == ["planner"]


async def test_a_module_that_the_sandbox_cannot_load_is_refused_with_the_reason(make: Make) -> None:
    """
    The SDK says that a workflow failed validation; here the error says what the module uses, and the way out.
    """
    source = f"import datetime\nSTARTED = datetime.datetime.now()\n{SKILL.format(id='a', name='A')}"

    said = refused([make(f"{source}\nAWorkflow = workflow_for(A)\n")])

    assert "skill 'a' cannot be defined" in said
    assert "forbids what the module uses at its top level, `datetime.datetime.now`" in said


async def test_all_refusals_are_said_at_once(make: Make) -> None:
    """
    Whoever mends one does not meet the next at the next start.
    """
    module = make(SKILL.format(id="a", name="A") + SKILL.format(id="b", name="B"))

    said = refused([module])

    assert "skill 'a': its module makes no workflow" in said
    assert "skill 'b': its module makes no workflow" in said
