"""`refold graph` and `refold check`, and how the application is found."""

import re
import sys
from pathlib import Path

import pytest

from refold.cli.application import usual_sources
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[3]
SKILL = """
import sys, time
from refold import Content, Ctx, Transition, flow_skill, step

sys.stdout.write("loaded\\n")

@flow_skill(id="late")
class Late:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(str(time.time()))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application of one skill, in the current folder."""
    (tmp_path / "late_skills.py").write_text(SKILL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "late_skills", raising=False)
    return tmp_path


def test_graph_by_id_and_by_path(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A skill of this folder's workflows by its id, any class by its path; the same diagram.
    """
    monkeypatch.chdir(ROOT)

    by_id = refold("graph", "research_loop")
    by_path = refold("graph", "workflows.research_loop:ResearchLoop")

    assert by_id.exit == by_path.exit == 0
    assert by_id.out == by_path.out
    assert by_id.out.startswith("stateDiagram-v2\n")


def test_graph_as_json(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The skill's id and the diagram, whose lines are in one string.
    """
    monkeypatch.chdir(ROOT)

    value = refold("graph", "research_loop", "--json").json

    assert value.keys() == {"skill", "mermaid"}
    assert value["mermaid"] == refold("graph", "research_loop").out


def test_graph_of_what_is_not_there(refold: Shell, here: Path) -> None:
    """
    Each way to be wrong has its own sentence.
    """
    assert "the skills known here: late" in refold("graph", "nope", "--module", "late_skills").err
    assert "no module workflows or activities" in refold("graph", "nope").err
    assert "cannot be imported" in refold("graph", "no_module:Nope").err
    assert "has no 'Nope'" in refold("graph", "late_skills:Nope").err
    assert "cannot be defined" in refold("graph", "late_skills:time").err
    assert "name a skill by its id, or as late_skills:NameOfItsClass" in refold("graph", "late_skills.py").err


def test_an_application_without_tools_may_have_a_folder_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As the tutorial's first step makes it: nobody has named the folder, so nothing is missing in it.
    """
    for name in ("workflows", "activities"):
        (tmp_path / name).mkdir()
    (tmp_path / "workflows" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)

    assert [source.name for source in usual_sources()] == ["workflows"]


def test_check_prints_findings_and_exits_1(refold: Shell, here: Path) -> None:
    """
    File, line, column, rule and remedy; what the module prints does not mix in.
    """
    people, programs = refold("check", "late_skills"), refold("check", "./late_skills.py", "--json")

    assert people.exit == programs.exit == 1
    assert people.out.startswith("late_skills.py:8:1: worker: skill 'late': its module makes no workflow of it; add")
    assert "late_skills.py:11:33: clock: Late.begin calls `time.time`" in people.out
    assert "2 findings in 1 file" in people.err
    assert programs.lines[0].keys() == {"file", "line", "column", "rule", "message"}


def test_check_of_clean_code_exits_0(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No names mean this folder's workflows and activities.
    """
    monkeypatch.chdir(ROOT)

    done = refold("check")

    assert (done.exit, done.out) == (0, "")
    assert done.err.startswith("nothing found in ")


def test_check_says_that_there_was_nothing_to_check(refold: Shell, here: Path) -> None:
    """
    Such as in a wrong folder: nothing found in files without a skill is no clean bill of health.
    """
    (here / "plain.py").write_text("NUMBER = 1\n")

    done = refold("check", "./plain.py")

    assert (done.exit, done.out) == (0, "")
    assert done.err == "nothing found in 1 file, where no skill and no tool is defined at the top level\n"


def test_check_of_what_is_not_there_exits_2(refold: Shell, here: Path) -> None:
    """
    A wrong name is no clean bill of health.
    """
    assert refold("check", "nope").exit == 2
    assert "names something in a module; name the module: late_skills" in refold("check", "late_skills:Late").err
    assert refold("check", "./nope.py", "--json").error["error"] == "NotFound"
    assert refold("check", "--json").error["error"] == "CallError"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["late_skills"], "makes no workflow of it"),
        (["late_skills", "--recovery", "slow"], "--recovery takes default or fast-recovery, not 'slow'"),
        (["nope"], "no module 'nope'"),
        ([], "no module workflows or activities"),
    ],
)
def test_a_worker_that_cannot_serve_says_why(words: list[str], says: str, refold: Shell, here: Path) -> None:
    """
    What is wrong with the application is found before any server is asked.
    """
    done = refold("worker", *words)

    assert done.exit == 2
    assert says in done.err


def test_a_module_that_cannot_be_imported_is_named(refold: Shell, here: Path) -> None:
    """
    The error names the file, the cause, and the line of the application that led to it.
    """
    (here / "broken_skills.py").write_text("import json\nimport broken_rates\n")
    (here / "broken_rates.py").write_text("import json\n\nRATES = json.loads('{')\n")

    assert re.search(
        r"broken_skills\.py cannot be imported: JSONDecodeError: .* \(broken_rates\.py, line 3\)",
        refold("worker", "broken_skills").err,
    )


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["replay", "--module", "script", "."], id="replay"),
        pytest.param(["graph", "late", "--module", "script"], id="graph by id"),
        pytest.param(["graph", "script:Late"], id="graph by path"),
        pytest.param(["project", "--db", "p.db", "--once", "--hook", "script:told"], id="project"),
    ],
)
@pytest.mark.parametrize(
    ("line", "why"), [("sys.exit(0)", "SystemExit: 0"), ("1 +", "SyntaxError: invalid syntax")], ids=["exit", "syntax"]
)
def test_a_module_that_cannot_be_loaded_ends_no_verb_as_if_it_were_done(
    words: list[str], line: str, why: str, refold: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A script that ends the process when it is imported would end the verb with its own exit code, and 0 is "done".
    """
    monkeypatch.delitem(sys.modules, "script", raising=False)
    (here / "script.py").write_text(f"{SKILL}\n{line}\n")

    done = refold(*words)

    assert done.exit == 2
    assert "cannot be imported" in done.err
    assert why in done.err


def test_a_script_without_its_guard_is_told_to_have_one(
    refold: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A verb imports modules within an event loop, where a script cannot run its own.
    """
    monkeypatch.delitem(sys.modules, "script", raising=False)
    (here / "script.py").write_text(f"{SKILL}\nimport asyncio\nasyncio.run(None)\n")

    done = refold("replay", "--module", "script", ".")

    assert done.exit == 2
    assert "a running event loop; what a script does stands under `if __name__ == " in done.err
