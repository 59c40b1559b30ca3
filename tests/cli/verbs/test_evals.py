"""`refold eval`."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def export(refold: Shell, tmp_path: Path) -> Path:
    """An ended task of `research_loop`, exported."""
    refold.start("research_loop", "Tides", "t1")
    refold("answer", "t1", "The north coast.")
    file = tmp_path / "t1.jsonl"
    assert refold("export", "t1", "-o", str(file)).exit == 0
    return file


def test_a_run_is_as_recorded(refold: Shell, export: Path) -> None:
    """
    Exit 0, a line for each export, and JUnit where asked for.
    """
    report = export.with_suffix(".xml")

    done = refold("eval", str(export), str(export), "--tools", "strict", "--junit", str(report))

    assert done.exit == 0
    assert done.out.splitlines()[0] == "t1  research_loop  as recorded: 6 steps"
    assert ElementTree.parse(report).getroot().get("tests") == "2"
    assert refold("eval", str(export), "--json").json["diverged"] is False


def test_another_model_diverges(refold: Shell, export: Path) -> None:
    """
    Exit 1, the first divergence, both sides, and the cost.
    """
    done = refold("eval", str(export), "--model", "scripted:demo")

    assert done.exit == 1
    assert done.out.startswith("t1  research_loop  differs: entry 2: recorded research: A draft.; ")
    assert "RECORDED" in done.out
    assert "asked anew" in done.out
    assert refold("eval", str(export), "--model", "scripted:demo", "--from", "6").exit == 0


def test_a_file_that_cannot_be_evaluated_hides_no_other(refold: Shell, export: Path) -> None:
    """
    It is named, the others are evaluated, and the exit is 2; as JUnit, it is an error.
    """
    damaged = export.with_name("damaged.jsonl")
    damaged.write_bytes(export.read_bytes()[:-1])
    report = export.with_suffix(".xml")

    done = refold("eval", str(damaged), str(export), "--junit", str(report))

    assert done.exit == 2
    why = "line 10: the file ends in the middle of it: its rest is missing; got "
    assert done.err.startswith(f"{damaged}: not evaluated: the export {str(damaged)!r} is damaged: {why}")
    assert "t1  research_loop  as recorded: 6 steps" in done.out.splitlines()
    suite = ElementTree.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", "1")


NEWER = """
from refold import Content, Ctx, Transition, flow_skill, step


@flow_skill(id="hello", version=2)
class Hello:
    @step(start=True)
    async def greet(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("hello")
"""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        pytest.param(
            ["--model", "scripted:demo", "--from", "6"], "task 'h1' has the entries 1 to 2, not 6", id="no-such-entry"
        ),
        pytest.param(
            ["--module", "NEWER", "--module", "workflows.research_loop"],
            "task 'h1' was saved by version 1 of skill 'hello', which is now 2 and has no `upgrade`",
            id="no-upgrade",
        ),
    ],
)
def test_what_one_file_lacks_hides_no_other(refold: Shell, export: Path, words: list[str], why: str) -> None:
    """
    An entry that it does not have, or a state that the code cannot take over: it is named, the others are evaluated.
    """
    refold.start("hello", "Ada", "h1")
    lacks, report, newer = export.with_name("h1.jsonl"), export.with_suffix(".xml"), export.with_name("newer_hello.py")
    assert refold("export", "h1", "-o", str(lacks)).exit == 0
    newer.write_text(NEWER)
    words = [str(newer) if word == "NEWER" else word for word in words]

    done = refold("eval", str(lacks), str(export), *words, "--junit", str(report))

    assert done.exit == 2
    assert done.err.startswith(f"{lacks}: not evaluated: {why}")
    assert "t1  research_loop  as recorded: 6 steps" in done.out.splitlines()
    suite = ElementTree.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", "1")


CHANGED = """
from refold import Content, Ctx, Transition, flow_skill, step


@flow_skill(id="hello")
class Hello:
    @step(start=True)
    async def greet(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("Good day." if ctx.patched("formal") else "Hello.")
"""


def test_the_new_path_of_a_change_is_taken_if_asked_for(refold: Shell, tmp_path: Path) -> None:
    """
    Else the line of the change says that it did not run.
    """
    refold.start("hello", "Ada", "h1")
    export, changed = tmp_path / "h1.jsonl", tmp_path / "changed_hello.py"
    assert refold("export", "h1", "-o", str(export)).exit == 0
    changed.write_text(CHANGED)

    old = refold("eval", str(export), "--module", str(changed)).out
    new = refold("eval", str(export), "--module", str(changed), "--patched").out

    line = "  old path, not the new code of ctx.patched: formal"
    assert (line in old.splitlines(), "Good day." in old) == (True, False)
    assert (line in new.splitlines(), "Good day." in new) == (False, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["eval"], "Missing argument 'EXPORT'"),
        (["eval", "none.jsonl"], "`refold export TASK -o none.jsonl` writes one"),
        (["eval", "FILE", "--from", "2"], "--from goes with --model"),
        (["eval", "FILE", "--from", "99", "--model", "scripted:demo"], "has the entries 1 to 6, not 99"),
        (["eval", "FILE", "--model", "scripted:nobody"], "there is no scripted model 'nobody'"),
        (["eval", "FILE", "--tools", "all"], "'all' is not one of"),
        (["eval", "FILE", "--module", "workflows.hello"], "no skill 'research_loop'"),
        (["eval", "FILE", "--junit", "no/such/folder/report.xml"], "cannot be written"),
        (["eval", "FILE", "--junit", "FILE"], "would be written over what is read; name another file"),
    ],
)
def test_wrong_calls(refold: Shell, export: Path, words: list[str], why: str) -> None:
    """
    Each says what came and what to do, exits 2, and leaves the export as it is.
    """
    whole = export.read_bytes()

    done = refold(*(str(export) if word == "FILE" else word for word in words))

    assert done.exit == 2
    assert why in done.err
    assert export.read_bytes() == whole
