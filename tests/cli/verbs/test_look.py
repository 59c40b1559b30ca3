"""`refold show`, `list`, `journal`, `watch` and `at`."""

import asyncio
import json
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue
from rich.text import Text

from refold import Content, Ctx, Transition, flow_skill, step
from refold.cli.text.entries import Story
from refold.cli.text.output import Output
from refold.cli.text.table import aligned
from refold.cli.verb import Call, ServerOptions
from refold.cli.verbs.history import watch
from refold.engine import Engine, Progress, TaskView, Tokens
from refold.projection import Projection
from refold.testing import FakeEngine, transient
from refold.words.text import clean
from tests.cli.conftest import Shell
from workflows.hello import Hello
from workflows.refund import RefundSkill


def test_a_task_in_a_few_lines(refold: Shell, tmp_path: Path) -> None:
    """
    `--summary` tells where the task stands, and nothing that was said; as JSON it has the row of `refold project`.
    """
    refold.start("research_loop", "SECRET Tides", "t1")
    said = refold("show", "t1", "--summary").out
    told = refold("show", "t1", "--summary", "--json").json
    refold("project", "--db", str(tmp_path / "tasks.db"), "--once")
    (row, *_) = (json.loads(line) for line in Projection(str(tmp_path / "tasks.db")).dump())

    assert said.splitlines()[0] == "Task t1 is paused."
    assert said.splitlines()[-1] == "Waits for guidance: Which coast?"
    assert told["summary"] == said.strip()
    assert told["checkpoint"] | {"checkpoint_data": json.dumps(told["checkpoint"]["checkpoint_data"])} == row
    assert "SECRET" not in json.dumps(told)


def test_a_summary_saves_files_too(refold: Shell, tmp_path: Path) -> None:
    """
    What an option asks for is done or refused, whatever is printed.
    """
    refold.start("research_loop", "Tides", "t1")

    for words in ([], ["--summary"]):
        refused = refold("show", "t1", "--save", str(tmp_path), *words)
        assert (refused.exit, refused.err) == (2, "error: the task has handed over no file\n")


def test_metrics_have_a_place(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A variable that was not set is none.
    """
    monkeypatch.delenv("REFOLD_METRICS", raising=False)
    refused = refold("metrics", " ")

    assert refused.exit == 2
    assert "HOST:PORT is empty" in refused.err


def test_metrics_are_at_most_two_minutes_old(refold: Shell) -> None:
    """
    A longer pause is refused: the alert about open tasks that are unknown would fire between two looks.
    """
    refused = refold("metrics", "127.0.0.1:0", "--every", "121")

    assert refused.exit == 2
    assert "less than or equal to 120" in refused.err


def test_show_is_a_card(refold: Shell) -> None:
    """
    Everything about the task, and how to answer it.
    """
    refold.start("research_loop", "Tides", "t1")

    lines = refold("show", "t1").out.splitlines()

    assert lines[:2] == ["t1  research_loop", "status      input-required (paused)"]
    assert lines[3:] == [
        "waits for   guidance",
        "              Which coast?",
        "next        refold answer t1 TEXT",
        "messages",
        "  user      Tides",
        "  agent     Which coast?",
    ]


class Trip(BaseModel):
    """A reply with fields."""

    to: str
    nights: int = 1


@flow_skill(id="asks")
class Asks:
    """Waits for a reply of each sort, and for a decision."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask for all of it."""
        await ctx.gather(
            ctx.ask("trip", "Where to?", expect=Trip), ctx.ask("note", "Anything else?"), ctx.approve("pay", "Pay?")
        )
        return ctx.complete("Thanks.")


def test_each_question_shows_the_command_that_answers_it() -> None:
    """
    Fields where data is wanted, a text where anything goes, a decision at a gate.
    """
    shell = Shell(FakeEngine([Asks]))
    shell.start("asks", "hi", "a")

    shown = [line[12:] for line in shell("show", "a").out.splitlines() if "refold " in line]

    assert shown == [
        "refold answer a to=… --slot trip",
        "refold answer a TEXT --slot note",
        "refold approve a a/1.3",
        "refold deny a a/1.3",
    ]
    assert shell("approve", "a", "a/1.3", "--as", "Ann").exit == 0
    assert shell("answer", "a", "yes", "--slot", "trip").err.count("the fields to, nights?") == 1
    assert shell("answer", "a", "to=Rome", "--slot", "trip").exit == 0


@flow_skill(id="asks_one")
class AsksOne:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.ask("size", f"Size of {content.text}?")).text)


@flow_skill(id="asks_two")
class AsksTwo:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        one, two = await ctx.gather(ctx.skill("one", AsksOne, "coat"), ctx.skill("two", AsksOne, "hat"))
        return ctx.complete(f"{one.text}, {two.text}")


def test_questions_of_one_name_are_told_apart_in_the_commands_that_answer_them() -> None:
    """
    The parts of a task are often of one skill, and ask by the same name.
    """
    shell = Shell(FakeEngine([AsksOne, AsksTwo]))
    shell.start("asks_two", "hi", "a")
    commands = [line[12:] for line in shell("show", "a").out.splitlines() if "refold answer" in line]

    answered = [shell(*shlex.split(line.replace("TEXT", text))[1:]) for line, text in zip(commands, "ML", strict=True)]

    assert commands == ["refold answer a TEXT --slot a/1.1/1.1", "refold answer a TEXT --slot a/1.2/1.1"]
    assert [one.exit for one in answered] == [0, 0]
    assert "M, L" in shell("show", "a").out


@flow_skill(id="asks_hello")
class AsksHello:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("greeting", "hello", content)).text)


def test_a_task_says_why_its_part_waits() -> None:
    """
    Nothing is wrong with the task itself, and whoever waits for it looks there.
    """

    class OneIsUnknown(FakeEngine):
        async def look(self, task_id: str) -> TaskView:
            note = "no skill 'hello'" if task_id == "a/1.1" else ""
            return (await super().look(task_id)).model_copy(update={"note": note})

    shell = Shell(OneIsUnknown([AsksHello, Hello]))
    shell.start("asks_hello", "hi", "a")

    assert "note        its part a/1.1 waits: no skill 'hello'" in shell("show", "a").out.splitlines()


def test_show_exits_0_for_a_failed_task(refold: Shell) -> None:
    """
    The look succeeded.
    """
    shell = Shell(FakeEngine(refold.engine.skills.values(), answers={"llm": ValueError("no such model")}))
    shell.start("hello", "Ada", "h")

    done = shell("show", "h", "--json")

    assert (done.exit, done.json["status"], done.json["lifecycle"]) == (0, "failed", "failed")


def test_show_tells_of_retries(refold: Shell) -> None:
    """
    Cause and due time of what is tried again stand beside the command.
    """
    shell = Shell(FakeEngine(refold.engine.skills.values(), answers={"llm": transient("busy")}))
    shell.start("hello", "Ada", "h")

    assert "llm greeting  h/1.1  after: busy  due " in shell("show", "h").out


def test_show_says_on_which_day_a_task_wakes_up() -> None:
    """
    A task may sleep for months, so a time of day alone says nothing.
    """

    @flow_skill(id="sleeper")
    class Sleeper:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            await ctx.sleep(90 * 86_400)
            return ctx.complete("awake")

    shell = Shell(FakeEngine([Sleeper]))
    shell.start("sleeper", "go", "s")

    due = shell("show", "s", "--json").json["pending"][0]["due_at"]
    there = datetime.fromisoformat(due).astimezone()
    assert f"  due {there:%Y-%m-%d %H:%M:%S}\n" in shell("show", "s").out


def test_list_is_a_table_newest_first(refold: Shell) -> None:
    """
    Columns are aligned; nothing is cut but the last one.
    """
    refold.start("research_loop", "Tides", "t1")
    refold.start("hello", "Ada", "a-longer-id")

    head, *rows = refold("list").out.splitlines()

    assert head.split() == ["TASK", "SKILL", "STATUS", "LIFECYCLE", "UPDATED", "WHAT"]
    assert [row.split()[0] for row in rows] == ["a-longer-id", "t1"]
    assert len({row.index(" 2026-") for row in rows}) == 1
    assert rows[1].endswith("guidance: Which coast?")


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ["h", "t1"]),
        (["--skill", "hello"], ["h"]),
        (["--lifecycle", "paused"], ["t1"]),
        (["--limit", "1"], ["h"]),
        (["--skill", "nope"], []),
        (["--owner", "ada"], []),
        (["--owner", ""], ["h", "t1"]),
    ],
)
def test_list_filters(words: list[str], ids: list[str], refold: Shell) -> None:
    """
    Filters leave what fits, one object a line.
    """
    refold.start("research_loop", "Tides", "t1")
    refold.start("hello", "Ada", "h")

    assert [view["task_id"] for view in refold("list", "--json", *words).lines] == ids


def test_an_empty_list_is_no_output(refold: Shell) -> None:
    """
    Pipes get nothing; people are told so.
    """
    done = refold("list")

    assert (done.exit, done.out) == (0, "")
    assert "no tasks" in done.err


def test_journal_has_one_entry_a_line(refold: Shell) -> None:
    """
    Entries are numbered without gaps, and hold their event.
    """
    refold.start("research_loop", "Tides", "t1")

    entries = refold("journal", "t1", "--json").lines

    assert [entry["seq"] for entry in entries] == [1, 2, 3]
    assert entries[0]["event"]["kind"] == "user_message"
    assert {"seq", "at", "event", "commands", "moves"} <= entries[0].keys()
    assert [entry["seq"] for entry in refold("journal", "t1", "--after", "2", "--json").lines] == [3]


def test_journal_reads_as_a_story(refold: Shell) -> None:
    """
    What happened, what was asked for, and the moves of the lifecycle.
    """
    refold.start("research_loop", "Tides", "t1")

    lines = refold("journal", "t1").out.splitlines()

    assert lines[0].startswith("#1 ")
    assert lines[0].endswith("user: Tides")
    assert lines[1:3] == ["    asks: llm research", "    planned → running"]
    assert lines[-3:] == ["    says: Which coast?", "    asks: ask guidance", "    running → paused"]


def test_the_journal_of_a_start_that_was_refused_says_why_once() -> None:
    """
    In the entry; what goes to stderr adds that there is no such task.
    """
    refold = Shell(FakeEngine([RefundSkill]))
    refold.engine.worker = False
    refold.start("refund", "all of it", "t1")
    refold.engine.worker = True
    asyncio.run(refold.engine.settle())

    told = refold("journal", "t1")

    assert "    refused: skill 'refund' starts from data" in told.out
    assert told.err.splitlines()[-1] == "its start was refused, and its id is free"


def test_watch_ends_at_a_pause(refold: Shell) -> None:
    """
    The entries so far, then how to answer, on stderr.
    """
    refold.start("research_loop", "Tides", "t1")

    done = refold("watch", "t1", "--json")
    people = refold("watch", "t1", "--after", "2")

    assert (done.exit, [entry["seq"] for entry in done.lines], done.err) == (0, [1, 2, 3], "")
    assert people.out.startswith("#3 ")
    assert "refold answer t1 TEXT" in people.err


def test_watch_exits_1_for_a_failed_task(refold: Shell) -> None:
    """
    Scripts can wait with it.
    """
    shell = Shell(FakeEngine(refold.engine.skills.values(), answers={"llm": ValueError("no such model")}))
    shell.start("hello", "Ada", "h")

    assert shell("watch", "h").exit == 1


class _Heard(Output):
    """Tells when it has printed something."""

    def __init__(self, *, json: bool) -> None:
        super().__init__(json=json)
        self.something = asyncio.Event()

    def value(self, value: BaseModel | dict[str, Any]) -> None:
        super().value(value)
        self.something.set()

    def say(self, *lines: str | Text) -> None:
        super().say(*lines)
        self.something.set()


@pytest.mark.parametrize("as_json", [False, True])
async def test_watch_shows_text_while_it_is_written(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Model text comes between the entries, as a running line for people and as objects for programs.
    """
    engine = FakeEngine([Hello])
    await engine.start("hello", Content.from_text("Ada"), task_id="h", stream=True)

    async def connect(_: ServerOptions) -> Engine:
        return engine

    heard = _Heard(json=as_json)
    watching = asyncio.create_task(watch(Call(heard, connect=connect), "h", follow=True))
    await heard.something.wait()
    capsys.readouterr()
    engine.write("h", "greeting", "Hel")
    engine.write("h", "greeting", "lo, \x1b[31mAda.")
    await engine.reply("h", "greeting", "Hello, Ada.")
    assert await watching == 0

    out = capsys.readouterr().out
    if as_json:
        first, second, entry = map(json.loads, out.splitlines())
        assert (first["kind"], first["text"], second["offset"]) == ("tokens", "Hel", 3)
        assert entry["seq"] == 2
    else:
        assert out.startswith("    h/1.1 writes: Hello, �[31mAda.\n#2 ")


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ([("a", 1, 0, "one "), ("a", 1, 4, "two")], "    a writes: one two"),
        ([("a", 1, 0, "one "), ("a", 1, 2, "e two")], "    a writes: one two"),
        ([("a", 1, 0, "one "), ("a", 1, 9, "ten")], "    a writes: one …ten"),
        ([("a", 1, 0, "one"), ("a", 2, 0, "uno")], "    a writes: one\n    a writes: uno"),
        ([("a", 1, 0, "one"), ("b", 1, 0, "two")], "    a writes: one\n    b writes: two"),
    ],
    ids=["in order", "again", "with a gap", "a new attempt", "two at once"],
)
def test_streamed_text_is_pieced_together(
    told: list[tuple[str, int, int, str]], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Nothing is shown twice, gaps are marked, and texts of two calls do not mix.
    """
    story = Story(Output(json=False))
    for id, attempt, offset, text in told:
        story.tell(Tokens(invocation_id=id, attempt=attempt, offset=offset, text=text))

    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("said", "shown"),
    [("40 of 100", "40 of 100"), ({"done": 40}, '{"done": 40}'), ("\x1b[2Jgone", "gone")],
    ids=["text", "data", "control characters"],
)
def test_a_tools_progress_is_a_line(said: JsonValue, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """
    With the call and the tool.
    """
    Story(Output(json=False)).tell(Progress(invocation_id="T/3.1", tool="fetch", attempt=1, number=4, said=said))

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("    T/3.1 fetch: ")
    assert line.endswith(shown)


def test_at_is_the_snapshot_after_an_entry(refold: Shell) -> None:
    """
    The whole snapshot for programs; card and state for people.
    """
    refold.start("research_loop", "Tides", "t1")

    snapshot = refold("at", "t1", "1", "--json").json
    people = refold("at", "t1", "3").out

    assert (snapshot["seq"], snapshot["lifecycle"], snapshot["state"]["kind"]) == (1, "running", "researching")
    assert '"kind": "await_human"' in people
    assert "refold answer" not in people


def test_control_characters_do_not_reach_the_terminal(refold: Shell) -> None:
    """
    Text of users and models is data to the terminal too.
    """
    refold.start("hello", "\x1b]0;owned\x07A\r\nB\x9bC", "h")

    out = refold("show", "h").out + refold("journal", "h").out

    assert "\x1b" not in out
    assert "\x9b" not in out
    assert clean("a\tb\nc") == "a\tb\nc"


def test_characters_that_hide_or_turn_text_are_shown_by_their_number(refold: Shell) -> None:
    """
    What a person reads is what stands there, as on the page.
    """
    refold.start("hello", "pay 100 \u202e\u2066evil \u200b\U000e0065 caf\u00e9", "h")

    for out in (refold("show", "h").out, refold("journal", "h").out):
        assert "pay 100 [U+202E][U+2066]evil [U+200B][U+E0065] caf\u00e9" in out
        assert not set(out) & set("\u202e\u2066\u200b\U000e0065")


def test_a_task_is_one_row_of_a_table_whatever_its_id() -> None:
    """
    Temporal's own tools give a task any id: a line end in it makes no row that looks like another task's.
    """
    lines = list(aligned([("TASK", "STATUS"), ("a\nb\r\nc\td\r", "completed")]))

    assert lines == ["TASK      STATUS", "a�b�c�d�  completed"]


def test_piped_output_has_no_colours_and_no_wrapping(refold: Shell) -> None:
    """
    A long line stays one line.
    """
    refold.start("hello", "word " * 100, "h")

    out = refold("show", "h").out

    assert "\x1b[" not in out
    assert max(map(len, out.splitlines())) > 400


async def test_watch_says_why_nothing_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Where a task is silent, what it knows of the reason goes to stderr, once; the watch goes on.
    """
    monkeypatch.setattr("refold.cli.waiting.SILENT_S", 0.01)
    looked = asyncio.Semaphore(0)

    class Looked(FakeEngine):
        async def look(self, task_id: str) -> TaskView:
            looked.release()
            return await super().look(task_id)

    engine = Looked([Hello])
    await engine.start("hello", Content.from_text("Ada"), task_id="h")

    async def connect(_: ServerOptions) -> Engine:
        return engine

    watching = asyncio.create_task(watch(Call(Output(json=False), connect=connect), "h"))
    await looked.acquire()
    engine.worker = False
    for _ in range(3):
        await looked.acquire()
    engine.worker = True
    await engine.reply("h", "greeting", "Hello, Ada.")
    assert await watching == 0

    assert capsys.readouterr().err == "waiting: no worker answers; start one with `refold worker`\n"
