"""`refold start`, `answer` and `cancel`."""

import asyncio
import io
from typing import Any

import pytest

from refold.cli.errors import CallError, explain
from refold.cli.text.content import content_of
from refold.core.errors import RefoldError
from refold.engine import NotConnected, NoWorker
from refold.testing import FakeEngine
from tests.a2a.skills import Later, Steered
from tests.cli.conftest import Shell
from workflows import hello

FIELDS = {
    "task_id", "skill", "status", "lifecycle", "reason", "messages", "artifacts", "pending", "waiting_for", "seq",
    "updated_at", "progress", "refused", "late", "recovered_from", "forked_from", "offspring", "note",
}  # fmt: skip


ANSWER = "refold answer t1 TEXT"


def test_start_says_what_the_task_waits_for(refold: Shell) -> None:
    """
    For people: the task, what it waits for, and the question; what to type next goes to stderr.
    """
    done = refold("start", "research_loop", "Tides", "--id", "t1")

    assert (done.exit, done.out, done.err) == (0, "t1  waiting for: guidance\n  Which coast?\n", f"next: {ANSWER}\n")


def test_answer_says_how_it_went_on(refold: Shell) -> None:
    """
    A completed task shows what it said last and what it handed over.
    """
    refold.start("research_loop", "Tides", "t1")

    done = refold("answer", "t1", "The Dutch one", "--as", "ada")

    assert (done.exit, done.out) == (0, "t1  completed\n  Approved.\n  final.txt: A draft.\n")
    assert "ada: The Dutch one" in refold("journal", "t1").out


def test_json_has_every_field(refold: Shell) -> None:
    """
    Programs find all fields, empty ones too, on one line.
    """
    started = refold("start", "research_loop", "Tides", "--id", "t1", "--json").json
    answered = refold("answer", "t1", "Dutch", "--json").json

    assert started.keys() == answered.keys() == FIELDS
    assert (started["status"], started["lifecycle"]) == ("input-required", "paused")
    assert started["waiting_for"] == [{"slot": "guidance", "message": "Which coast?", "gate": "t1/3.1"}]
    assert answered["artifacts"] == [{"name": "final.txt", "text": "A draft."}]
    assert answered["messages"][2] == {"role": "user", "text": "Dutch"}


def test_pending_commands_show_their_id_and_attempt(refold: Shell) -> None:
    """
    A command that is out has its invocation id, its name for people and its attempt.
    """
    silent = Shell(FakeEngine(list(refold.engine.skills.values())))

    view = silent("start", "hello", "Ada", "--id", "h", "--json").json

    assert view["pending"] == [{"invocation_id": "h/1.1", "command": "llm greeting", "attempt": 1}]
    assert silent("start", "hello", "Ada", "--id", "i").out == "i  working\n  llm greeting  i/1.1\n"


def test_data_reaches_the_task_as_data(refold: Shell) -> None:
    """
    key=value pairs become one JSON object beside the text; whoever looks at the task sees both.
    """
    refold("start", "hello", "Ada", "order=A1", "cents=90", "--id", "h")

    snapshot = asyncio.run(refold.engine.at("h", 1))

    content, both = snapshot.messages[0].content, {"order": "A1", "cents": 90}
    assert (content.text, content.data) == ("Ada", both)
    assert refold("show", "h", "--json").json["messages"][0] == {"role": "user", "text": "Ada", "data": both}
    assert '\n  user      Ada\n            {"order": "A1", "cents": 90}\n' in refold("show", "h").out
    assert 'Ada {"order": "A1", "cents": 90}' in refold("journal", "h").out


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_text_is_nothing_to_send(refold: Shell, empty: str) -> None:
    """
    A variable that is not set, a closed stdin, or a command before the pipe that failed: no task is started, and no
    question answered, with an empty text, unless it is given as data.
    """
    refold.start("research_loop", "Tides", "t1")

    for words in (["start", "hello"], ["answer", "t1"], ["answer", "t1", "--wait"]):
        given, piped = refold(*words, empty), refold(*words, "-", stdin=empty)
        assert (given.exit, given.out, piped.exit, piped.out) == (2, "", 2, "")
        assert given.err.startswith("error: there is nothing to send: the text is empty")
        assert piped.err.startswith("error: there is nothing to send: stdin is empty")
        assert "--data '\"\"'" in given.err
    assert refold("show", "t1", "--json").json["waiting_for"][0]["slot"] == "guidance"
    assert refold("answer", "t1", "--data", '""').exit == 0


@pytest.mark.parametrize("words", [("-",), ("caf\udce9",), ("name=caf\udce9",)])
def test_bytes_that_are_no_text_are_refused(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whether they come from stdin or as an argument; the way to send them is named.
    """
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))

    with pytest.raises(CallError, match="is no UTF-8 text; --file PATH sends any bytes"):
        content_of(words, None)


def test_json_from_stdin_that_is_wrong_is_shown(refold: Shell) -> None:
    """
    What came, and not the `-` that stands for it.
    """
    broken, twice = (refold("start", "hello", "--data", "-", stdin=said) for said in ('{"a": NaN}', '{"a": 1, "a": 2}'))

    assert broken.err == "error: --data is no JSON: NaN is not in JSON; got '{\"a\": NaN}'\n"
    assert twice.err.endswith('; got \'{"a": 1, "a": 2}\'\n')


def test_text_may_come_from_stdin(refold: Shell) -> None:
    """
    `-` is the text that is piped in.
    """
    view = refold("start", "hello", "-", "--json", stdin="I am Ada").json

    assert view["messages"][0]["text"] == "I am Ada"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_failed_task_exits_1(flags: tuple[str, ...], refold: Shell) -> None:
    """
    The answer is printed all the same, with the reason.
    """
    shell = Shell(FakeEngine(refold.engine.skills.values(), answers={"llm": ValueError("no such model")}))

    done = shell("start", "hello", "Ada", "--id", "h", *flags)

    assert done.exit == 1
    assert "no such model" in done.out
    assert done.err == ("" if flags else "next: refold recover h\n")


def test_waiting_tells_the_story_on_stderr(refold: Shell) -> None:
    """
    With --wait, stdout still holds the result alone.
    """
    done = refold("start", "hello", "Ada", "--id", "h", "--wait")

    assert done.out == "h  completed\n  Hello, Ada.\n"
    assert "greeting answered: Hello, Ada." in done.err
    assert refold("start", "hello", "Ada", "--wait", "--json").err == ""


def test_cancel_exits_0(refold: Shell) -> None:
    """
    A canceled task is what was asked for; canceling twice is a wrong call.
    """
    refold.start("research_loop", "Tides", "t1")

    done = refold("cancel", "t1", "--reason", "not needed", "--as", "ada", "--json")

    assert (done.exit, done.json["status"], done.json["reason"]) == (0, "canceled", "not needed")
    assert "cancel requested by ada: not needed" in refold("journal", "t1").out
    assert refold("cancel", "t1").exit == 2


def test_a_delivery_is_taken_once(refold: Shell) -> None:
    """
    The same delivery id twice changes nothing the second time.
    """
    refold.start("research_loop", "Tides", "t1")
    first = refold("answer", "t1", "Dutch", "--slot", "guidance", "--delivery-id", "d1", "--json").json

    assert refold("answer", "t1", "Dutch", "--delivery-id", "d1", "--json").json == first


def test_a_message_to_a_task_at_work_is_refused_held_or_interrupts_it() -> None:
    """
    As `--on-busy` says; refused without it.
    """
    refold = Shell(FakeEngine([Steered, Later]))
    refold.start("steered", "x", "t1")
    refold.start("later", "x", "t2")

    refused = refold("answer", "t1", "enough", "--json")
    held = refold("answer", "t2", "Ada", "--on-busy", "queue", "--json").json
    met = refold("answer", "t1", "enough", "--on-busy", "interrupt", "--json").json

    assert (refused.exit, refused.error["error"]) == (2, "InputRejected")
    assert held["status"] == "working"
    assert (met["status"], met["messages"][-1]["text"]) == ("completed", "Stopped: enough")


@pytest.mark.parametrize(
    ("words", "name", "says"),
    [
        (["start", "nope", "x"], "UnknownSkill", "hello, research_loop"),
        (["start", "hello", "x", "--id", "t1"], "TaskExists", "refold show t1"),
        (["answer", "nope", "x"], "TaskNotFound", "refold list"),
        (["answer", "t1", "x", "--on-busy", "hold"], "CallError", "refuse, queue, interrupt, not 'hold'"),
        (["answer", "t1", "x", "--slot", "other"], "InputRejected", "open: 'guidance'; `refold show t1`"),
        (["show", "nope"], "TaskNotFound", "refold list"),
        (["cancel", "nope"], "TaskNotFound", "refold list"),
        (["journal", "nope"], "TaskNotFound", "refold list"),
        (["watch", "nope"], "TaskNotFound", "refold list"),
        (["at", "t1", "99"], "InputRejected", "has the entries 1 to 3, not 99"),
        (["at", "t1", "many"], "BadParameter", "refold at --help"),
        (["show"], "MissingParameter", "refold show --help"),
        (["nope"], "UsageError", "refold --help"),
        (["list", "--limit", "0"], "BadParameter", "--limit"),
        (["list", "--lifecycle", "asleep"], "BadParameter", "paused"),
        (["worker", "--skill", "nope"], "UnknownSkill", "forty_steps, hello"),
        (["worker", "--grace", "-1"], "BadParameter", "--grace"),
        (["start", "hello"], "CallError", "nothing to send"),
        (["start", "hello", "two", "texts"], "CallError", "quotes"),
        (
            ["answer", "t1", "ok=false", "note=no", "more", "money", "by=me"],
            "CallError",
            "note='no more money'; a text",
        ),
        (["start", "hello", "a=1", "a=2"], "CallError", "twice"),
        (["start", "hello", "--data", "{no"], "CallError", "no JSON"),
        (["start", "hello", "--data", '{"a": 1, "a": 2}'], "CallError", "--data: the key 'a' is given twice"),
        (["start", "hello", 'a=[{"b": 1, "b": 2}]'], "CallError", "the key 'b' is given twice"),
        (["start", "hello", "--data", "null"], "CallError", "null"),
        (["start", "hello", "--data", "[1]", "a=2"], "CallError", "object"),
        (["start", "hello", "--data", '{"a":1}', "a=2"], "CallError", "both"),
    ],
)
def test_wrong_calls_exit_2_and_say_the_way_out(words: list[str], name: str, says: str, refold: Shell) -> None:
    """
    One line for people, one object for programs, both on stderr.
    """
    refold.start("research_loop", "Tides", "t1")

    people, programs = refold(*words), refold(*words, "--json")

    assert people.exit == programs.exit == 2
    assert people.out == ""
    assert people.err.startswith("error: ")
    assert people.err.count("\n") == 1
    assert says in people.err
    assert programs.error.keys() == {"error", "message"}
    assert programs.error["error"] == name
    assert says in programs.error["message"]


def test_without_a_server_the_error_says_so(refold: Shell) -> None:
    """
    What the engine raises is what is said.
    """
    refold.engine.fault = NotConnected("no Temporal server answers at h:1; start one with `refold dev`")

    assert refold("show", "t1", "--json").error["error"] == "NotConnected"
    assert refold("list").err == "error: no Temporal server answers at h:1; start one with `refold dev`\n"


def test_without_a_worker_a_task_is_submitted(refold: Shell) -> None:
    """
    Starting works, with a note; answering is refused.
    """
    refold.engine.worker = False

    done = refold("start", "hello", "Ada", "--id", "h")

    assert (done.exit, done.out) == (0, "h  submitted\n")
    assert done.err == "note: no worker answers; start one with `refold worker`\n"
    assert refold("answer", "h", "x", "--json").error["error"] == "NoWorker"
    assert "note        no worker answers" in refold("show", "h").out


class _Away(FakeEngine):
    """Its worker is away at the first look, and back at the second."""

    away = True

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> Any:
        """See `Engine.watch`."""
        if self.away:
            self.away = False
            raise NoWorker("no worker answers; start one with `refold worker`")
        async for one in super().watch(task_id, after=after, follow=follow):
            yield one


def test_a_watcher_waits_for_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    One that was killed before its first answer, or is being replaced: the watch says so, and goes on.
    """
    monkeypatch.setattr("refold.cli.waiting.ASK_AGAIN_S", 0)
    shell = Shell(_Away([hello.Hello], answers={"greeting": "Hello, Ada."}))
    shell("start", "hello", "Ada", "--id", "h")
    watched = shell("watch", "h")

    assert "waiting: no worker answers" in watched.err
    assert "1 " in watched.out


class _Broken(FakeEngine):
    async def look(self, task_id: str) -> Any:
        raise KeyError("boom")


def test_a_bug_is_a_sentence_unless_debugging(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No traceback reaches people; REFOLD_DEBUG=1 shows it.
    """
    shell = Shell(_Broken())
    done = shell("show", "t1")

    assert done.exit == 2
    assert done.err == "error: refold met an error of its own: KeyError: 'boom'; REFOLD_DEBUG=1 shows where\n"

    monkeypatch.setenv("REFOLD_DEBUG", "1")
    assert "Traceback" in shell("show", "t1").err


def test_connection_options_reach_the_engine(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Options say which server is meant; the queue has a variable of its own.
    """
    refold("list", "--address", "h:1", "--namespace", "n", "--profile", "p", "--task-queue", "q")
    assert refold.server is not None
    assert (refold.server.address, refold.server.namespace) == ("h:1", "n")
    assert (refold.server.profile, refold.server.task_queue) == ("p", "q")

    refold("list")
    assert (refold.server.address, refold.server.task_queue) == (None, "refold")

    monkeypatch.setenv("REFOLD_TASK_QUEUE", "mine")
    refold("list")
    assert refold.server.task_queue == "mine"


def test_every_error_of_the_tree_is_a_wrong_call() -> None:
    """
    No error that refold raises on purpose is said as a bug.
    """

    def tree(kind: type[Exception]) -> list[type[Exception]]:
        return [kind, *(below for sub in kind.__subclasses__() for below in tree(sub))]

    for kind in tree(RefoldError):
        error = kind.__new__(kind)
        error.args = ("what to do",)
        assert "error of its own" not in explain(error)[1]


def test_a_held_task_is_released(refold: Shell) -> None:
    """
    `start --hold` says how to begin the task, `--wait` does not wait for that, and `release` begins it.
    """
    held = refold("start", "research_loop", "Tides", "--id", "t1", "--hold", "--wait")
    released = refold("release", "t1", "--wait")
    again = refold("release", "t1")

    assert (held.exit, held.out) == (0, "t1  submitted\n")
    assert "note: it is held; `refold release t1` begins it now" in held.err
    assert (released.exit, released.out) == (0, "t1  waiting for: guidance\n  Which coast?\n")
    assert (again.exit, "there is nothing to release" in again.err) == (2, True)


def test_a_start_is_delayed(refold: Shell) -> None:
    """
    A length of time with its unit; the task says when it begins.
    """
    delayed = refold("start", "research_loop", "Tides", "--id", "t1", "--delay", "2h")
    wrong = refold("start", "research_loop", "Tides", "--delay", "soon")

    assert (delayed.exit, delayed.out) == (0, "t1  submitted\n")
    assert "note: it begins at " in delayed.err
    assert wrong.exit == 2
    assert "'soon' is no length of time; write a number and a unit (d, h, m or s), such as 30d" in wrong.err


def test_a_key_may_begin_with_any_letter(refold: Shell) -> None:
    """
    As the fields of a skill may.
    """
    assert content_of(["änderung=5", "_a=1"], None).data == {"änderung": 5, "_a": 1}
    assert content_of(["5=6"], None).text == "5=6"


@pytest.mark.parametrize(
    "words",
    [("--data", '"\\ud800"'), ("--data", '{"a": ["\\udfff"]}'), ("--data", '"\udcff"')],
    ids=["escaped", "inside", "bytes that are no UTF-8"],
)
def test_half_a_character_is_refused(words: tuple[str, ...], refold: Shell) -> None:
    """
    No task could write it: the caller is told, before anything is started.
    """
    done = refold("start", "hello", *words)

    assert done.exit == 2
    assert "--data is no JSON: a text in it has half of a surrogate pair" in done.err
