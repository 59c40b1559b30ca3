"""`refold replay` over files: results, exit codes, and how wrong calls are answered."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from tests.cli.conftest import Shell
from tests.records.replaying import HISTORIES, VALUES
from tests.temporal.replay.changed import changed, forget


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the current one; modules are imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REFOLD_STORAGE", str(VALUES))
    before = set(sys.modules)
    yield tmp_path
    forget(before)


def shown(folder: Path, name: str) -> Path:
    """A recorded history as `temporal workflow show --output json` prints it."""
    data = json.loads(gzip.decompress((HISTORIES / f"{name}.json.gz").read_bytes()))
    file = folder / f"{name}.json"
    file.write_text(json.dumps(data["history"]))
    return file


def test_what_fits(refold: Shell, here: Path) -> None:
    """
    The code does what was recorded: an object for each run, and exit 0.
    """
    for name in ("hello", "refund"):
        shown(here, name)

    done = refold("replay", ".", "--module", "workflows", "--json")

    assert done.exit == 0, done.err
    assert [(one["task_id"], one["skill"], one["entries"], one["compared"], one["same"]) for one in done.lines] == [
        ("hello", "hello", 2, "entries", True),
        ("refund", "refund", 6, "entries", True),
    ]


def test_what_differs(refold: Shell, here: Path) -> None:
    """
    The first difference of a run, as text and as JUnit XML, and exit 1.
    """
    greeting = ("Greet this person in one sentence.", "Greet this person.")
    module = changed(here, "workflows.hello", greeting).__name__
    file = shown(here, "hello")

    done = refold("replay", file.name, "--module", module, "--junit", "found.xml")

    where = "entry 1 (user_message) in 'greet': model call 'greeting', prompt"
    run, recorded, now = done.out.splitlines()
    assert done.exit == 1
    assert run.startswith("hello (run ")
    assert run.endswith(where)
    assert recorded.split() == ["recorded", *f'"{greeting[0]}"'.split()]
    assert now.split() == ["now", *f'"{greeting[1]}"'.split()]
    assert done.err == "1 run: 0 as recorded, 1 different, 0 not replayed\n"
    suite = fromstring((here / "found.xml").read_text())
    assert suite.attrib == {"name": "refold replay", "tests": "1", "failures": "1", "errors": "0"}
    [failure] = suite.iter("failure")
    assert failure.text == f'{where}: recorded "{greeting[0]}", now "{greeting[1]}"'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no history"),
        ('{"events": []}', "does not begin with a workflow's start"),
        ('{"events": [{"eventType": "SOMETHING"}]}', "does not begin with a workflow's start"),
        ('{"events": [{"eventId": "x"}]}', "holds no history"),
    ],
)
def test_what_is_no_history(refold: Shell, here: Path, text: str, problem: str) -> None:
    """
    A file that cannot be read is named, the others are replayed, and the exit is 2.
    """
    (here / "bad.json").write_text(text)
    shown(here, "hello")

    done = refold("replay", "bad.json", "hello.json", "--module", "workflows", "--json")

    assert done.exit == 2
    good, bad = sorted(done.lines, key=lambda one: one["problem"])
    assert (good["task_id"], good["same"]) == ("hello", True)
    assert bad["problem"].startswith(f"bad.json {problem}")
    assert "temporal workflow show --output json" in bad["problem"]


def test_an_export(refold: Shell, here: Path) -> None:
    """
    All runs in a file that `refold export --history` wrote are replayed; one without them says what to do.
    """
    histories = [json.loads(shown(here, name).read_text()) for name in ("hello", "refund")]
    header, end = '{"header":{"refold":"export/1"},"digest":"00"}', '{"end":{},"digest":"00"}'
    lines = [json.dumps({"history": {"run_id": "r", "history": one}, "digest": "00"}) for one in histories]
    (here / "with.export").write_text("\n".join([header, *lines, end, ""]))
    (here / "without.export").write_text("\n".join([header, end, ""]))

    done = refold("replay", "with.export", "--module", "workflows", "--json")
    without = refold("replay", "without.export", "--module", "workflows", "--json")

    assert done.exit == 0
    assert [(one["task_id"], one["same"]) for one in done.lines] == [("hello", True), ("refund", True)]
    assert without.exit == 2
    assert without.json["problem"].endswith("export the task with `--history`")


def test_a_skill_that_is_gone(refold: Shell, here: Path) -> None:
    """
    Named, with the skills that there are; exit 2.
    """
    shown(here, "refund")

    done = refold("replay", "refund.json", "--module", "workflows.hello")

    assert done.exit == 2
    assert "not replayed: the code at hand has no skill 'refund'; it has hello" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay"], "name tasks or files, or give one of --open and --recent N"),
        (["replay", "--open", "--recent", "3"], "name tasks or files, or give one of --open and --recent N"),
        (["replay", "task-1", "--open"], "name tasks or files, or give one of --open and --recent N"),
        (["replay", "task-1", "--skill", "hello"], "--skill narrows --open and --recent"),
        (["replay", "--recent", "0"], "Invalid value for '--recent'"),
        (["replay", "gone.json", "--module", "workflows"], "there is no file gone.json"),
        (["replay", "empty", "--module", "workflows"], "no file in empty ends in .json or .json.gz"),
        (["replay", "--open", "--module", "nothing"], "nothing"),
        (["replay", "--open"], "no module workflows or activities in"),
        (["replay", "--open", "--module", "tests.docs.pages"], "no skill in tests.docs.pages"),
        (["replay", "--open", "--module", "workflows", "--skill", "helo"], "no skill 'helo'; the skills known here: "),
        (["replay", "--recent", "9", "--module", "workflows.hello", "--skill", "refund"], "known here: hello"),
        (["replay", "task-1", "--module", "workflows"], "histories are those of a Temporal server"),
        (
            ["replay", "hello.json", "--module", "workflows", "--junit", "no/such/folder.xml"],
            "no/such/folder.xml cannot be written",
        ),
        (
            ["replay", "hello.json", "--module", "workflows", "--junit", "hello.json"],
            "--junit hello.json would be written over what is read",
        ),
    ],
)
def test_wrong_calls(refold: Shell, here: Path, words: list[str], said: str) -> None:
    """
    One sentence that says what is wrong, and exit 2.
    """
    (here / "empty").mkdir()
    shown(here, "hello")

    done = refold(*words)

    assert done.exit == 2
    assert said in done.err
    assert "of its own" not in done.err
