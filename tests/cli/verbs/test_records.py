"""`refold export`, `refold journal --verify`, and the verbs that read an export in place of a task."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refold.cli.app import app
from refold.cli.verb import ServerOptions
from refold.core.fold.journal import Entry
from refold.digests import chained
from refold.engine import Engine, NotConnected
from refold.export.layout import Line, sealed
from refold.testing import FakeEngine
from tests.cli.conftest import Shell
from workflows.hello import Hello


@pytest.fixture
def export(refold: Shell, tmp_path: Path) -> Path:
    """An ended task of `research_loop`, exported."""
    refold.start("research_loop", "Tides", "t1")
    assert refold("answer", "t1", "The north coast.").exit == 0
    file = tmp_path / "t1.jsonl"
    assert refold("export", "t1", "-o", str(file)).exit == 0
    return file


def test_an_export_is_a_file_or_goes_to_stdout(refold: Shell, export: Path) -> None:
    """
    The same lines, one JSON value each.
    """
    printed = refold("export", "t1")

    assert printed.out == export.read_text()
    assert [next(iter(line)) for line in printed.lines][:4] == ["header", "task", "base", "entry"]
    assert refold("--json", "export", "t1").exit == 2  # options of a verb follow it
    assert refold("export", "t1", "-o", str(export), "--json").json["lines"] == len(printed.lines)


def test_an_export_is_the_same_bytes_wherever_it_goes(refold: Shell, tmp_path: Path) -> None:
    """
    A terminal or a locale that is not UTF-8 would damage what anyone is to verify.
    """
    refold.start("research_loop", "Gezeiten \N{EM DASH} Grüße, 日本", "t1")
    file = tmp_path / "t1.jsonl"
    assert refold("export", "t1", "-o", str(file)).exit == 0

    async def connect(_: ServerOptions) -> Engine:
        return refold.engine

    for charset in ("latin-1", "ascii"):
        printed = CliRunner(charset=charset).invoke(app, ["export", "t1"], obj=connect)
        assert (printed.exit_code, printed.stdout_bytes) == (0, file.read_bytes())


def test_an_export_replaces_nothing_but_a_file(refold: Shell, export: Path) -> None:
    """
    A pipe gets the lines and stays, as a device does; a link stays too, and its file is written; `-` is stdout.
    """
    folder, whole = export.parent, export.read_bytes()
    os.mkfifo(pipe := folder / "pipe")
    (link := folder / "link.jsonl").symlink_to("linked.jsonl")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    assert refold("export", "t1", "-o", str(pipe)).exit == 0
    assert refold("export", "t1", "-o", str(link)).exit == 0
    assert refold("export", "t1", "-o", "-").out.encode() == whole

    assert os.read(reader, len(whole) + 1) == whole
    os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert link.read_bytes() == whole
    names = ["link.jsonl", "linked.jsonl", "pipe", "t1.jsonl"]
    assert (sorted(one.name for one in folder.iterdir()), Path("-").exists()) == (names, False)


def test_an_export_goes_to_no_folder(refold: Shell, export: Path) -> None:
    """
    A folder, or a file in a folder that is not there: a sentence says so before anything is read, and nothing is left.
    """
    folder = export.parent / "out"
    folder.mkdir()

    for out, why in (
        (folder, f"{folder} is a folder; name a file in it: -o {folder / 't1.jsonl'}"),
        (folder / "no" / "t1.jsonl", "cannot be written: No such file"),
    ):
        done = refold("export", "t1", "-o", str(out))
        assert (done.exit, done.out) == (2, "")
        assert done.err.startswith("error: ")
        assert why in done.err
    assert sorted(one.name for one in export.parent.rglob("*")) == ["out", "t1.jsonl"]


def test_the_verbs_read_a_file_in_place_of_a_task(refold: Shell, export: Path) -> None:
    """
    They print what they print of the task itself; the card says that it is an export.
    """
    for words in (["journal"], ["journal", "--json"], ["journal", "--after", "2"]):
        assert refold(words[0], str(export), *words[1:]).out == refold(words[0], "t1", *words[1:]).out
    assert refold("at", str(export), "2").out == refold("at", "t1", "2").out
    there, here = refold("show", "t1", "--json").json, refold("show", str(export), "--json").json
    assert here == {**there, "note": "as it was exported"}
    assert "no contract" in refold("explain", str(export), "text").err


def test_a_task_may_be_called_as_a_file_could_be(refold: Shell) -> None:
    """
    Where there is no such file, the name is the task's; without a server nobody knows, and the error says both.
    """
    refold.start("hello", "Ada", "t1.jsonl")

    async def away(_: ServerOptions) -> Engine:
        raise NotConnected("no Temporal server answers")

    assert refold("show", "t1.jsonl").out.startswith("t1.jsonl  hello\n")
    lost = CliRunner().invoke(app, ["show", "t1.jsonl"], obj=away)
    assert lost.stderr == "error: no Temporal server answers; and there is no file 't1.jsonl'\n"


def test_a_file_is_only_read(refold: Shell, tmp_path: Path) -> None:
    """
    The card of an open task's export has no command that answers the task; a verb that needs the task itself says so.
    """
    refold.start("research_loop", "Tides", "t1")
    file = tmp_path / "t1.jsonl"
    assert refold("export", "t1", "-o", str(file)).exit == 0

    card, answered = refold("show", str(file)), refold("answer", str(file), "north")

    assert "  guidance" in card.out
    assert "refold answer" not in card.out
    assert answered.exit == 2
    assert f"no task {str(file)!r}" in answered.err
    assert "`refold show`, `journal`, `at`, `explain` and `fork` read an export" in answered.err


def test_a_fork_of_a_file_is_printed(refold: Shell, export: Path) -> None:
    """
    Its journal and its status: it runs in memory, and is gone after that.
    """
    done = refold("fork", str(export), "--at", "2", "--as", "ada")

    assert done.exit == 1
    assert "branches off from entry 2 of t1, dry: nothing takes place" in done.out
    assert "t1.f1  failed" in done.out
    assert done.err == ""
    assert refold("show", "t1.f1").exit == 2


def test_an_export_is_verified_alone_or_against_the_server(refold: Shell, export: Path) -> None:
    """
    Exit 0, and the digests; the server's journal has the same.
    """
    alone, both = refold("journal", "--verify", str(export)), refold("journal", "t1", "--verify", str(export))

    assert (alone.exit, both.exit) == (0, 0)
    assert "t1  research_loop  completed  6 entries, 1 to 6  digest " in alone.out
    assert both.out == alone.out + "the entries of t1 are those of the server\n"
    told = refold("journal", "--verify", str(export), "--json").json
    assert (told["verified"], told["whole"], told["tasks"][0]["task_id"]) == (True, True, "t1")


def test_a_damaged_export_exits_1_and_names_the_line(refold: Shell, export: Path) -> None:
    """
    Also where it is to be read.
    """
    export.write_text(export.read_text().replace("Which coast?", "Which moon?"))

    found = refold("journal", "--verify", str(export))

    assert found.exit == 1
    assert found.out.startswith("damaged: line 2: its digest is ")
    assert refold("journal", "--verify", str(export), "--json").json["line"] == 2
    assert refold("show", str(export)).exit == 2


def test_an_export_commands_no_terminal(refold: Shell, export: Path) -> None:
    """
    Its ids are whatever its maker wrote. What is printed of them has no escape sequence, in a result and in an error.
    """
    seal = before = b""
    lines = []
    for number, raw in enumerate(export.read_bytes().splitlines(keepends=True), 1):
        line = Line.read(number, raw)
        body = line.body.replace(b'"task_id":"t1"', b'"task_id":"t1\\u001b[2J"')
        seal = sealed(seal, line.kind, body)
        if line.kind == "entry":
            before = chained(before, Entry.model_validate_json(body))
        lines.append(Line(number, line.kind, body, before if line.kind == "entry" else seal).written())
    export.write_bytes(b"".join(lines))

    good, bad = refold("journal", "--verify", str(export)), refold("journal", "t1", "--verify", str(export))

    assert (good.exit, bad.exit) == (0, 2)
    assert good.out.startswith("t1\N{REPLACEMENT CHARACTER}[2J  research_loop")
    assert "but t1\N{REPLACEMENT CHARACTER}[2J" in bad.err


def test_a_redacted_export_needs_the_server_to_verify(refold: Shell, export: Path) -> None:
    """
    Alone it does not verify as whole; its digests are those of the server's journal.
    """
    assert refold("export", "t1", "-o", str(export), "--redact").out.endswith("lines, redacted\n")

    alone, both = refold("journal", "--verify", str(export)), refold("journal", "t1", "--verify", str(export))

    assert (alone.exit, both.exit) == (1, 0)
    assert "redacted: the file is as it was written" in alone.out
    assert "Tides" not in export.read_text()
    assert "says: [text of 12 characters]" in refold("journal", str(export)).out


def test_the_command_that_compares_a_redacted_export_is_whole(refold: Shell, export: Path) -> None:
    """
    With its path in quotes, and the server that was named.
    """
    spaced = export.with_name("a file.jsonl")
    refold("export", "t1", "-o", str(spaced), "--redact")

    found = refold("journal", "--verify", str(spaced), "--namespace", "team")

    assert f"`refold journal t1 --verify '{spaced}' --namespace team` compares them" in found.out


def test_another_journal_is_told_apart(refold: Shell, export: Path) -> None:
    """
    The first entry that differs is named; or that the file holds another task, or more entries.
    """
    other = export.with_name("other.jsonl")
    elsewhere = Shell(FakeEngine([Hello], answers={"greeting": "Hello, Ada."}))
    elsewhere.start("hello", "Ada", "t1")
    elsewhere("export", "t1", "-o", str(other))

    differs = refold("journal", "t1", "--verify", str(other))

    assert differs.exit == 1
    assert "entry 1 differs: the export's digest is " in differs.out
    refold.start("hello", "Ada", "t2")
    assert refold("journal", "t2", "--verify", str(other)).err.startswith("error: the export holds no task 't2'")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["journal"], "name the task whose journal to print"),
        (["journal", "--verify", "none.jsonl"], "the export 'none.jsonl' cannot be read: No such file"),
        (["show", "none.jsonl"], "`refold export TASK -o none.jsonl` writes one"),
        (["export", "none"], "no task 'none'"),
        (["export", "t1", "--history"], "--history needs a Temporal server"),
        (["export", "t1", "-o", "no/such/folder/t1.jsonl"], "cannot be written: No such file"),
        (["at", "FILE", "99"], "has the entries 1 to 6, not 99"),
        (["fork", "FILE", "--at", "2", "--live"], "a fork of an export is dry"),
        (["purge"], "error: name the tasks to purge, or their owner: --owner NAME\n"),
        (["purge", "t1", "--owner", "olga"], "give --owner or the ids of tasks, not both"),
        (["purge", "t1", "--older-than", "30d"], "--older-than goes with --owner"),
        (["purge", "t1", "--yes"], "purge needs a Temporal server"),
        (["purge", "--owner", "olga", "--older-than", "a year"], "'a year' is no length of time"),
        (["purge", "--owner", "olga", "--older-than", "999999d"], "purge needs a Temporal server"),
    ],
)
def test_wrong_calls(refold: Shell, export: Path, words: list[str], why: str) -> None:
    """
    Each says what came and what to do, and exits 2.
    """
    done = refold(*(str(export) if word == "FILE" else word for word in words))

    assert done.exit == 2
    assert why in done.err


def test_an_unfinished_file_is_not_left_behind(refold: Shell, tmp_path: Path) -> None:
    """
    The file appears once it is whole.
    """
    assert refold("export", "none", "-o", str(tmp_path / "none.jsonl")).exit == 2
    assert list(tmp_path.iterdir()) == []


def test_receipts_go_along(refold: Shell, export: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """
    --receipts reads the ledger that REFOLD_LEDGER names.
    """
    monkeypatch.setenv("REFOLD_LEDGER", str(tmp_path / "ledger.db"))

    lines = [json.loads(line) for line in refold("export", "t1", "--receipts").out.splitlines()]

    assert [line for line in lines if "receipt" in line] == []
