"""What people see of a task that stands still: why, and the whole command that lets it go on."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.main import get_command

from refold import Content, Ctx, Failure, FailureKind, RetryPolicy, Transition, flow_skill, step
from refold.cli.app import app
from refold.cli.text.views import card, rows, ways_out
from refold.core.gates import GateKind
from refold.core.lifecycle import Status, TaskState
from refold.core.waits import Unresolved
from refold.engine import TaskView, WaitView
from refold.testing import FakeEngine, transient
from tests.cli.conftest import Shell
from tests.gated import Payment
from workflows.hello import Hello

WHY = "the connection was cut after the request was sent. " + "It is not known whether the card was charged. " * 9
UNKNOWN = Failure(kind=FailureKind.UNKNOWN, type="outcome_unknown", message=WHY.strip())
OUTCOME = "refold resolve c1 --outcome JSON    # it took place: its result"
RETRY = "refold resolve c1 --retry    # it did not"


@flow_skill(id="charging")
class Charging:
    """Charges by a tool."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(
            f"charged: {await ctx.tool('charge', retry=RetryPolicy(max_retries=0, on_exhausted='block'))}"
        )


@flow_skill(id="ordering")
class Ordering:
    """Leaves the charge to a part."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        charged = await ctx.skill("charging", "charging", content.text)
        return ctx.complete(f"ordered: {charged.text}")


def shell(charge: object) -> Shell:
    return Shell(FakeEngine([Charging, Ordering, Payment, Hello], answers={"charge": charge, "greeting": "Hello."}))


@pytest.fixture
def charging() -> Shell:
    """An engine in which nobody knows whether a charge took place."""
    return shell(UNKNOWN)


def test_waiting_ends_at_a_task_that_an_operator_must_resolve(charging: Shell) -> None:
    """
    `start --wait` ends, says the whole reason, and prints both commands that let the task go on.
    """
    done = charging("start", "charging", "go", "--id", "c1", "--wait")

    assert done.exit == 0
    assert done.out.startswith("c1  working\n  tool charge  c1/1.1  blocked\n")
    assert UNKNOWN.message in done.out
    assert [line for line in done.err.splitlines() if line.startswith("next: ")] == [
        f"next: {OUTCOME}",
        f"next: {RETRY}",
    ]


def test_watch_ends_at_a_task_that_an_operator_must_resolve(charging: Shell) -> None:
    """
    The same for `watch`; programs end there too, and find the command in `unresolved`.
    """
    charging.start("charging", "go", "c1")

    people, programs = charging("watch", "c1"), charging("watch", "c1", "--json")

    assert f"waiting for an operator: tool charge: {UNKNOWN.message}" in people.err
    assert (people.err.count(OUTCOME), people.err.count(RETRY)) == (1, 1)
    assert (programs.exit, programs.lines[-1]["moves"][-1]["to_state"], programs.err) == (0, "blocked", "")
    (one,) = charging("show", "c1", "--json").json["unresolved"]
    assert one == {"task_id": "c1", "invocation_id": "c1/1.1", "command": "tool charge", "failure": UNKNOWN.message}


def test_a_parent_says_which_command_of_a_part_is_blocked(charging: Shell) -> None:
    """
    A task that waits for a blocked part ends `--wait` and `watch` too, and names the part, which takes the resolution.
    """
    done = charging("start", "ordering", "go", "--id", "o1", "--wait")

    assert done.exit == 0
    assert UNKNOWN.message in done.out
    assert "next: refold resolve o1/1.1 --retry    # it did not" in done.err
    assert "o1/1.1 is blocked until an operator resolves it: tool charge" in charging("journal", "o1").out
    assert (
        "resolve the blocked command of its part: o1/1.1/1.1 of task 'o1/1.1'"
        in charging("resolve", "o1", "--retry").err
    )
    assert charging("resolve", "o1/1.1", "--outcome", '"yes"').exit == 0
    assert charging("show", "o1", "--json").json["status"] == "completed"


def test_a_part_that_is_canceled_waits_for_nobody(charging: Shell) -> None:
    """
    What a part waited for goes with it.
    """
    charging("start", "ordering", "go", "--id", "o1")

    canceled = charging("cancel", "o1", "--json").json

    assert (canceled["status"], canceled.get("unresolved")) == ("canceled", None)


def test_a_dependency_that_is_down_is_said_and_waited_for() -> None:
    """
    A task that is blocked until its dependency answers shows the whole reason, and the command that retries it now.
    """
    down = shell(transient(WHY))
    down.start("charging", "go", "c1")

    card = down("show", "c1")

    assert WHY.strip() in card.out
    assert "refold resolve c1 --retry    # to retry it now" in card.out


@pytest.mark.parametrize(
    ("skill", "verb", "says"),
    [
        pytest.param("payment", (), ["refold approve t", "refold deny t"], id="a gate"),
        pytest.param("payment", ("deny", "t", "--as", "ada"), ["refold recover t"], id="failed"),
        pytest.param("payment", ("cancel", "t"), ["refold recover t"], id="canceled"),
        pytest.param("payment", ("approve", "t", "--as", "ada"), [], id="done"),
    ],
)
def test_show_prints_the_next_command(charging: Shell, skill: str, verb: tuple[str, ...], says: list[str]) -> None:
    """
    In every state in which a task stands still, its card has the whole commands that let it go on.
    """
    charging.start(skill, "50", "t")
    if verb:
        charging(*verb)

    lines = [line.strip().removeprefix("next").strip() for line in charging("show", "t").out.splitlines()]

    assert [line for line in lines if line.startswith("refold ")] == says


def test_a_task_that_was_canceled_before_it_began_names_nothing(charging: Shell) -> None:
    """
    Nothing could be recovered; a new one is to be started.
    """
    charging("start", "payment", "50", "--id", "t", "--hold")

    canceled = charging("cancel", "t")

    assert "refold recover" not in canceled.err + charging("show", "t").out
    assert "canceled before it began" in charging("recover", "t").err


def test_a_task_at_work_is_watched() -> None:
    """
    A task with a command under way names `refold watch`; one that another task recovers names nothing.
    """
    working = Shell(FakeEngine([Hello]))
    assert working("start", "hello", "Ada", "--id", "h").err == "next: refold watch h\n"
    assert "next        refold watch h\n" in working("show", "h").out

    working("cancel", "h")
    working("recover", "h")
    card = working("show", "h").out
    assert "went on as  h.r1" in card
    assert "next " not in card


def test_the_inbox_finds_what_waits_however_old_it_is(charging: Shell) -> None:
    """
    A gate and a blocked task are listed, with their commands, behind any number of newer tasks; a part's once.
    """
    charging.start("payment", "50", "p1")
    charging.start("ordering", "go", "o1")
    for number in range(120):
        charging.start("hello" if number % 2 else "payment", "50", f"n{number}")
        if not number % 2:
            charging("approve", f"n{number}", "--as", "ada")

    told, lines = charging("inbox").out, charging("inbox", "--json").lines

    assert "p1  pay (approval)" in told
    assert f"o1/1.1  tool charge (blocked)\n  {UNKNOWN.message}\n  refold resolve o1/1.1 --outcome JSON" in told
    assert [(line["task_id"], line.get("gate_kind"), line.get("command")) for line in lines] == [
        ("o1/1.1", None, "tool charge"),
        ("p1", "approval", None),
    ]
    assert [line["task_id"] for line in charging("inbox", "--for", "ada", "--json").lines] == ["p1"]


def test_the_inbox_lists_every_page(charging: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    More tasks than one page holds are listed.
    """
    monkeypatch.setattr("refold.cli.verbs.decisions.PAGE", 2)
    for number in range(5):
        charging.start("payment", "50", f"p{number}")

    assert len(charging("inbox", "--json").lines) == 5


def test_the_inbox_names_what_it_cannot_read(charging: Shell) -> None:
    """
    A task whose worker is away waits, and nobody can say for what. Whoever asks is told so, not that nothing waits.
    """
    charging.start("payment", "50", "p1")
    charging.engine.worker = False

    for told in (charging("inbox"), charging("inbox", "--for", "ada"), charging("inbox", "--for", "eve")):
        assert "p1 waits, and cannot be asked for what: no worker answers" in told.err
        assert "nothing waits" not in told.err


@pytest.mark.parametrize(
    ("words", "out"),
    [
        pytest.param(("approve", "p1", "--as", "ada"), "p1  completed\n  paid, says ada\n", id="approve"),
        pytest.param(("deny", "p1", "--as", "ada"), "p1  failed\n  approval_denied by ada\n", id="deny"),
        pytest.param(("resolve", "c1", "--outcome", '"yes"'), "c1  completed\n  charged: yes\n", id="resolve"),
        pytest.param(("recover", "f1"), "f1.r1  waiting for: pay\n  Pay this?\n", id="recover"),
        pytest.param(("fork", "f1", "--at", "1"), "f1.f1  waiting for: pay\n  Pay this?\n", id="fork"),
    ],
)
def test_decisions_wait_like_start(charging: Shell, words: tuple[str, ...], out: str) -> None:
    """
    With `--wait` the journal goes to stderr from the decision on, stdout has the task as it settled, and a task that
    failed exits 1.
    """
    charging.start("payment", "50", "p1")
    charging.start("charging", "go", "c1")
    charging.start("payment", "50", "f1")
    charging("deny", "f1", "--as", "ada")

    done = charging(*words, "--wait")

    assert (done.exit, done.out) == (1 if words[0] == "deny" else 0, out)
    assert "#" in done.err


@pytest.mark.parametrize("id", ["a b/c", " ", "-x", "a'b", 'a"b', "x" * 201, "ä", "a\n"])
@pytest.mark.parametrize("verb", [("start", "hello", "Ada"), ("fork", "f1", "--at", "1")])
def test_an_id_is_checked_where_it_is_given(charging: Shell, verb: tuple[str, ...], id: str) -> None:
    """
    An id that has no address over A2A, or that a shell takes apart, is refused with the rule; nothing is started.
    """
    charging.start("payment", "50", "f1")
    charging("deny", "f1", "--as", "ada")

    refused = charging(*verb, f"--id={id}")

    assert refused.exit == 2
    assert "a task id has 1 to 200 letters, digits and . _ - : @ + = ," in refused.err
    assert "lists its entries" not in refused.err  # which would not help
    assert len(charging("list", "--json").lines) == 1


def test_cancel_says_what_may_have_taken_place() -> None:
    """
    An effect that was being performed, and a blocked one, are named: the task's end does not say what came of them.
    """
    working = Shell(FakeEngine([Charging]))
    working.start("charging", "go", "c1")
    blocked = shell(UNKNOWN)
    blocked.start("charging", "go", "c1")

    one, other = working("cancel", "c1"), blocked("cancel", "c1")

    assert (one.exit, one.out) == (0, "c1  canceled\n  canceled on request\n")
    assert "was being performed, and may have taken place: tool charge  c1/1.1" in one.err
    assert f"NOT known whether charge took place: {UNKNOWN.message}" in other.err


@flow_skill(id="many")
class Many:
    """Calls a tool many times at once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(*(ctx.tool("charge", id=f"charge {n}") for n in range(int(content.text))))
        return ctx.complete()


@pytest.mark.parametrize(("calls", "told"), [(10, 10), (11, 10), (200, 10)])
def test_cancel_names_a_few_of_many(calls: int, told: int) -> None:
    """
    Of what there is more than a screen takes, it says how many more there are, and what lists them.
    """
    working = Shell(FakeEngine([Many]))
    working.start("many", str(calls), "m1")

    lines = working("cancel", "m1").err.splitlines()

    assert sum("may have taken place: tool charge" in line for line in lines) == told
    more = [line for line in lines if "more" in line]
    assert more == ([f"and {calls - told} more: `refold journal m1` lists them"] if calls > told else [])


def test_a_held_task_is_released() -> None:
    """
    Its card has the command.
    """
    held = shell("charged")
    held("start", "charging", "go", "--id", "c1", "--hold")

    assert "next        refold release c1    # begins it now" in held("show", "c1").out.splitlines()


GATE = WaitView(slot="pay", message="Pay 5 cents?", gate="t1/1.1", gate_kind=GateKind.APPROVAL, digest="d")
FOUND = 'entry 2: messages[0].parts[0].text was recorded as "Pay 5 cents?", and the code says "Pay 500 cents?" now'


def test_a_task_whose_code_differs_takes_nothing() -> None:
    """
    It shows its gate, and no command to decide there: what comes next is to see what of it differs. A table says so
    where it says what other tasks wait for.
    """
    view = TaskView(
        task_id="t1",
        skill="s",
        status=Status.INPUT_REQUIRED,
        lifecycle=TaskState.PAUSED,
        waiting_for=(GATE,),
        note=f"its code differs: {FOUND}",
        differs=FOUND,
    )

    assert ways_out(view) == ["refold replay t1    # does the code in this folder fit what was recorded?"]
    assert ways_out(view.model_copy(update={"differs": ""})) == ["refold approve t1", "refold deny t1"]
    assert "its code has changed: entry 2: messages[0]" in [*rows([view])][1]
    shown = "\n".join(map(str, card(view)))
    assert shown.count("Pay 500 cents?") == 1
    assert "Pay 5 cents?" in shown


QUESTION = WaitView(slot="age", message="How old?", gate="-t1/1.2")
BLOCKED = Unresolved(task_id="-t1/1.1", invocation_id="-t1/1.1/1.1", command="tool pay", failure="no answer")


@pytest.mark.parametrize(
    "stands",
    [
        pytest.param({"lifecycle": TaskState.PAUSED, "waiting_for": (GATE,)}, id="gate"),
        pytest.param({"lifecycle": TaskState.PAUSED, "waiting_for": (GATE, QUESTION)}, id="several"),
        pytest.param({"lifecycle": TaskState.PAUSED, "waiting_for": (QUESTION,)}, id="question"),
        pytest.param({"lifecycle": TaskState.RUNNING, "unresolved": (BLOCKED,)}, id="a part's command"),
        pytest.param({"lifecycle": TaskState.BLOCKED}, id="blocked"),
        pytest.param({"lifecycle": TaskState.RUNNING}, id="at work"),
        pytest.param({"lifecycle": TaskState.PLANNED, "note": "held; `refold release -t1` begins it now"}, id="held"),
        pytest.param({"lifecycle": TaskState.FAILED, "seq": 3}, id="failed"),
        pytest.param({"lifecycle": TaskState.PAUSED, "differs": FOUND}, id="its code differs"),
    ],
)
def test_the_next_command_reads_an_id_that_begins_with_a_dash_as_an_id(stands: dict[str, Any]) -> None:
    """
    Temporal's own tools start tasks under such ids. The command line takes each printed command as it is.
    """
    view = TaskView.model_validate({"task_id": "-t1", "skill": "s", "status": Status.WORKING, **stands})
    verbs: Any = get_command(app)

    lines = ways_out(view, " --address prod:7233")
    assert lines

    for line in lines:
        _, verb, *words = shlex.split(line, comments=True)
        parsed = verbs.commands[verb].make_context(verb, words).params.values()
        assert "prod:7233" in parsed
        assert any(
            str(one).startswith("-t1")
            for value in parsed
            for one in (value if isinstance(value, (list, tuple)) else [value])
        )


def test_a_reason_that_is_all_there_is_to_say_is_said_once() -> None:
    """
    A task that left no journal has its end as the reason and as the note.
    """
    ended = TaskView(
        task_id="t1", skill="s", status=Status.FAILED, lifecycle=TaskState.FAILED, reason="refused", note="refused"
    )

    assert [str(line) for line in card(ended)][2:] == ["reason      refused"]


ELSEWHERE = ["--address", "prod:7233", "--namespace", "team a"]
THERE = "--address prod:7233 --namespace 'team a'"


def test_the_next_command_goes_to_the_same_server(refold: Shell) -> None:
    """
    Options that named the server are in each command that is printed, quoted, before its comment.
    """
    started = refold("start", "research_loop", "Tides", "--id", "t1", *ELSEWHERE)
    refused = refold("answer", "t1", "north", "--slot", "no such", *ELSEWHERE)

    assert f"next: refold answer t1 TEXT {THERE}\n" in started.err
    assert f"next        refold answer t1 TEXT {THERE}\n" in refold("show", "t1", *ELSEWHERE).out
    assert f"next: refold answer t1 TEXT {THERE}\n" in refold("watch", "t1", *ELSEWHERE).err
    assert f"`refold show t1 {THERE}` tells how it stands" in refused.err
    assert f"`refold start SKILL TEXT {THERE}` starts one" in refold("list", "--skill", "none", *ELSEWHERE).err


def test_the_next_command_of_an_operator_goes_to_the_same_server(charging: Shell) -> None:
    """
    In the inbox too; a profile and a task queue are options like the others.
    """
    charging.start("charging", "go", "c1")

    done = charging("inbox", "--profile", "cloud", "--task-queue", "q2")

    assert "  refold resolve c1 --retry --task-queue q2 --profile cloud    # it did not\n" in done.out


def test_a_setting_of_the_environment_is_not_repeated(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The next command has it too.
    """
    monkeypatch.setenv("TEMPORAL_ADDRESS", "prod:7233")
    monkeypatch.setenv("REFOLD_TASK_QUEUE", "q2")

    assert "next: refold answer t1 TEXT\n" in refold("start", "research_loop", "Tides", "--id", "t1").err
