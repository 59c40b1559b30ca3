"""The fold: what one event does to a task, seen through small reducers."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from refold import (
    Artifact,
    Cmd,
    CommandFailed,
    Content,
    Ctx,
    Event,
    LlmResult,
    RetryPolicy,
    SkillResult,
    Status,
    TaskState,
    TimerFired,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
)
from refold.core.events import BackoffOver
from refold.core.fold.journal import no_entry
from refold.core.fold.refusal import refusal
from refold.core.fold.wanted import finished, wanted
from tests.core.byhand import ByHand, at, busy, message, refused, result


class Log(BaseModel):
    """What a reducer heard, in order."""

    heard: list[str] = []


def name_of(event: Event) -> str:
    match event:
        case UserMessage():
            return f"{event.slot or 'start'}={event.content.text}"
        case CommandFailed():
            return f"{event.id} failed"
        case LlmResult() | ToolResult() | TimerFired() | SkillResult():
            return f"{event.id}={event.value}"
        case _:
            return event.kind


class Listener:
    """Writes down what it hears; `answer` says what it asks for."""

    @staticmethod
    def initial() -> Log:
        return Log()

    def on_event(self, state: Log, event: Event, ctx: Ctx) -> Transition:
        heard = [*state.heard, name_of(event)]
        return self.answer(event, ctx, Transition.to(Log(heard=heard)))

    def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
        raise NotImplementedError


def heard(task: ByHand) -> list[str]:
    return Log.model_validate(task.task.state).heard


def two(*commands: Any, retry: RetryPolicy | None = None) -> ByHand:
    """A started task that asks for these commands at once, and goes on for ever."""

    @flow_skill(id="asks", retry=retry)
    class Asks(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            if isinstance(event, UserMessage) and event.slot is None:
                for command in commands:
                    on = on.cmd(command)
            return on

    task = ByHand(Asks)
    task.say()
    return task


# --- numbers, ids, order


def test_every_event_is_one_entry() -> None:
    """
    Taken, held or refused, an event is one entry with the next number, and `at` never goes back.
    """
    task = two(Cmd.llm("a"), Cmd.llm("b"))
    task.say("nobody asked")
    task.feed(result(task.pending("a"), "x"), second=-5)
    task.cancel()
    task.cancel()

    assert [entry.seq for entry in task.journal] == [1, 2, 3, 4, 5]
    assert [bool(entry.refused) for entry in task.journal] == [False, True, False, False, True]
    assert [entry.at for entry in task.journal] == [at(1), at(2), at(2), at(4), at(5)]
    assert task.task.refused == 2


def test_invocation_ids_count_events_and_places() -> None:
    """
    An invocation id is the task, the entry's number and the command's place in the entry; questions count too.
    """

    @flow_skill(id="ids")
    class Ids(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            if isinstance(event, UserMessage) and event.slot is None:
                return on.cmd(Cmd.llm("a")).cmd(Cmd.ask_user("q", "?")).cmd(Cmd.llm("b"))
            return on.cmd(Cmd.llm("c")) if isinstance(event, UserMessage) else on

    task = ByHand(Ids)
    task.say()
    task.say("refused", slot="other")
    task.say("yes")

    ids = [one.invocation_id for entry in task.journal for one in entry.commands]
    assert ids == [
        "T/1.1",
        "T/1.2",
        "T/1.3",
        "T/3.1",
    ]
    assert task.task.waits == ()


def test_inside_an_entry_what_was_said_comes_before_the_moves() -> None:
    """
    Messages and artifacts are in the order they were emitted; a question is said last.
    """

    @flow_skill(id="says")
    class Says(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            if isinstance(event, LlmResult):
                return on.message("three").cmd(Cmd.ask_user("q", "Four?"))
            return (
                on.message("one")
                .cmd(Cmd.message("two"))
                .cmd(Cmd.artifact(Artifact.from_text("f", "")))
                .cmd(Cmd.llm("a"))
            )

    task = ByHand(Says)
    first = task.say("hello")
    task.give("a", "x")

    assert [content.text for content in first.messages] == ["one", "two"]
    assert [artifact.name for artifact in first.artifacts] == ["f"]
    assert [(one.role, one.text, one.seq) for one in task.task.messages] == [
        ("user", "hello", 1),
        ("agent", "one", 1),
        ("agent", "two", 1),
        ("agent", "three", 2),
        ("agent", "Four?", 2),
    ]


def test_a_new_artifact_takes_the_place_of_its_namesake() -> None:
    """
    A task holds one artifact per name, the newest.
    """

    @flow_skill(id="hands_over")
    class HandsOver(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            if isinstance(event, UserMessage):
                return (
                    on.artifact(Artifact.from_text("a", "1")).artifact(Artifact.from_text("b", "1")).cmd(Cmd.llm("x"))
                )
            return Transition.complete().artifact(Artifact.from_text("a", "2")).artifact(Artifact.from_text("a", "3"))

    task = ByHand(HandsOver)
    task.say()
    last = task.give("x", "")

    assert [(one.name, one.text) for one in task.task.artifacts] == [("b", "1"), ("a", "3")]
    assert [one.text for one in last.artifacts] == ["2", "3"]


def test_the_journal_alone_gives_the_snapshot() -> None:
    """
    Folding the entries over the planned task gives what advancing gave, refusals and all.
    """
    task = two(Cmd.llm("a"), Cmd.tool("b", "t"), Cmd.sleep("s", 3))
    task.fail("a", busy())
    task.give("b", 1)
    task.say("refused", delivery_id="d")
    task.ring("a")
    task.give("a", "x")
    task.cancel("enough")

    assert task.folded() == task.task


# --- held outcomes


def test_what_comes_while_paused_is_held() -> None:
    """
    While the task waits for a person, outcomes are journaled and kept; the reply is met first, then they, in order.
    """

    @flow_skill(id="pauses")
    class Pauses(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            if name_of(event) == "start=go":
                return on.cmd(Cmd.llm("a")).cmd(Cmd.llm("b")).cmd(Cmd.llm("c"))
            return on.cmd(Cmd.ask_user("q", "?")) if name_of(event) == "a=1" else on

    task = ByHand(Pauses)
    task.say()
    task.give("a", "1")
    assert (task.state, task.status, task.waiting, task.out) == (
        TaskState.PAUSED,
        Status.INPUT_REQUIRED,
        ["q"],
        ["b", "c"],
    )
    entries = [task.give("c", "3"), task.give("b", "2")]
    assert [entry.held for entry in entries] == [True, True]
    assert heard(task) == ["start=go", "a=1"]

    task.say("yes")

    assert heard(task) == ["start=go", "a=1", "q=yes", "c=3", "b=2"]
    assert not task.task.held


def test_held_outcomes_stay_held_when_the_task_pauses_again() -> None:
    """
    Released outcomes are delivered until the task leaves running; the rest waits on, in order.
    """

    @flow_skill(id="pauses_twice")
    class PausesTwice(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            match name_of(event):
                case "start=go":
                    return on.cmd(Cmd.llm("a")).cmd(Cmd.llm("b")).cmd(Cmd.ask_user("q1", "?"))
                case "a=1":
                    return on.cmd(Cmd.ask_user("q2", "?")).cmd(Cmd.llm("c"))
                case _:
                    return on

    task = ByHand(PausesTwice)
    task.say()
    assert task.out == []
    task.say("yes")
    task.give("a", "1")
    task.give("b", "2")
    assert (task.waiting, heard(task)) == (["q2"], ["start=go", "q1=yes", "a=1"])

    task.say("go on")

    assert heard(task) == ["start=go", "q1=yes", "a=1", "q2=go on", "b=2"]


def test_commands_issued_with_a_question_wait_for_the_answer() -> None:
    """
    While the task is paused nothing new starts but timers; with the answer all of it goes out at once.
    """
    task = two(Cmd.llm("a"), Cmd.ask_user("q", "?"), Cmd.sleep("s", 60))
    assert (task.out, task.alarms, task.state) == ([], [61.0], TaskState.PAUSED)

    task.say("yes", slot="q")

    assert (task.out, task.alarms) == (["a"], [61.0])


def test_several_questions_at_once() -> None:
    """
    The task leaves paused with the last answer; each is met under its name, in the order they were given.
    """
    task = two(Cmd.ask_user("one", "1?"), Cmd.ask_user("two", "2?"), Cmd.llm("a"))
    assert (task.waiting, task.said) == (["one", "two"], ["1?", "2?"])
    assert "several questions are open ('one', 'two')" in task.say("which?").refused

    first = task.say("second", slot="two")
    assert (first.held, task.state, task.waiting) == (True, TaskState.PAUSED, ["one"])
    last = task.say("first")

    assert not last.held
    assert heard(task) == ["start=go", "two=second", "one=first"]
    assert task.moves == ["start", "pause_for_approval", "approval_granted"]


def test_an_answer_is_held_while_another_answer_makes_the_task_ask_anew() -> None:
    """
    Of two answers met together, the second waits when the skill asks again upon the first.
    """

    @flow_skill(id="asks_anew")
    class AsksAnew(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            match name_of(event):
                case "start=go":
                    return on.cmd(Cmd.ask_user("one", "1?")).cmd(Cmd.ask_user("two", "2?")).cmd(Cmd.llm("a"))
                case "one=1":
                    return on.cmd(Cmd.ask_user("three", "3?"))
                case _:
                    return on

    task = ByHand(AsksAnew)
    task.say()
    task.say("1", slot="one")
    assert task.say("2", slot="two").held
    assert heard(task) == ["start=go", "one=1"]

    task.say("3")

    assert heard(task) == ["start=go", "one=1", "two=2", "three=3"]


# --- trying again


def test_try_later_is_tried_three_times_by_default() -> None:
    """
    After 1, 2 and 4 seconds, under the same id; each is visible as attempt, alarm, backoff and note.
    """
    task = two(Cmd.llm("a"))
    command = task.pending("a").invocation_id
    delays = []
    for retry in (1, 2, 3):
        entry = task.fail("a", busy())
        assert (task.state, task.status, task.out) == (TaskState.RETRYING, Status.WORKING, [])
        assert [(one.invocation_id, one.retry) for one in entry.backoffs] == [(command, retry)]
        assert f"retry {retry} of 3 in {2 ** (retry - 1)} s" in entry.note
        delays.append((task.alarm("a").due_at - entry.at).total_seconds())
        task.ring("a")
        assert (task.state, task.out, task.pending("a").attempt) == (TaskState.RUNNING, ["a"], retry + 1)
    assert delays == [1, 2, 4]
    assert heard(task) == ["start=go"]

    task.give("a", "at last")

    assert heard(task) == ["start=go", "a=at last"]
    assert task.moves[:-1] == ["start", *["transient_error", "retry"] * 3]


def test_a_spent_retry_that_nobody_handles_fails_the_task() -> None:
    """
    It ends by the lifecycle's own way: running, retrying, failed.
    """

    @flow_skill(id="unprepared", retry=RetryPolicy(max_retries=1))
    class Unprepared(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            return Transition.ignore() if isinstance(event, CommandFailed) else on.cmd(Cmd.llm("a"))

    task = ByHand(Unprepared)
    task.say()
    task.fail("a", busy())
    task.ring("a")
    last = task.fail("a", busy())

    assert (task.state, task.status) == (TaskState.FAILED, Status.FAILED)
    assert task.reason == "a: busy (no retry left)"
    assert [str(move.event) for move in last.moves] == ["transient_error", "max_retries_exceeded"]


def test_a_handled_failure_does_not_move_the_lifecycle() -> None:
    """
    The skill hears of a final failure first; if it goes on, nothing else happens.
    """
    task = two(Cmd.llm("a"), Cmd.llm("b"))

    entry = task.fail("a")

    assert (task.state, heard(task)) == (TaskState.RUNNING, ["start=go", "a failed"])
    assert (entry.moves, entry.note) == ((), "")


def test_never_is_not_tried_again() -> None:
    """
    A permanent failure reaches the skill at once; ignored, it is the task's end and reason.
    """

    @flow_skill(id="ignores")
    class Ignores(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            return on.cmd(Cmd.llm("a")) if isinstance(event, UserMessage) else Transition.ignore()

    task = ByHand(Ignores)
    task.say()
    last = task.fail("a")

    assert task.reason == "a: forbidden"
    assert [str(move.event) for move in last.moves] == ["fatal_error"]
    assert finished(task.task)


def test_one_backoff_delays_what_its_siblings_say_not_what_they_do() -> None:
    """
    While one command backs off, others run on and come back, held; the last backoff's end lets the task run again.
    """
    task = two(Cmd.llm("a"), Cmd.llm("b"), Cmd.llm("c"))
    task.fail("a", busy())
    assert task.out == ["b", "c"]
    assert task.give("b", "2").held
    task.fail("c", busy())
    assert task.moves == ["start", "transient_error"]

    task.ring("a")
    assert (task.state, task.out, heard(task)) == (TaskState.RETRYING, ["a"], ["start=go"])
    assert task.give("a", "1").held
    task.ring("c")

    assert (task.state, heard(task)) == (TaskState.RUNNING, ["start=go", "b=2", "a=1"])
    assert task.moves == ["start", "transient_error", "retry"]


def test_a_final_failure_waits_while_a_sibling_backs_off() -> None:
    """
    The skill is called only while the task is running, for failures too; the command is not tried meanwhile.
    """
    task = two(Cmd.llm("a"), Cmd.llm("b"))
    task.fail("a", busy())
    assert task.fail("b").held
    assert (task.out, heard(task)) == ([], ["start=go"])

    task.ring("a")

    assert heard(task) == ["start=go", "b failed"]
    assert task.out == ["a"]


def test_a_failure_while_paused_is_classified_when_it_is_released() -> None:
    """
    A retry could not go out before the answer, so its wait begins with the answer.
    """
    task = two_then_question()
    assert task.fail("a", busy()).held
    assert (task.out, task.alarms, task.pending("a").failure) == ([], [], "busy")

    task.say("yes")

    assert (task.state, task.alarms) == (TaskState.RETRYING, [5.0])


def two_then_question() -> ByHand:
    """A task that waits for `q` with `a` in flight."""

    @flow_skill(id="questions")
    class Questions(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            match name_of(event):
                case "start=go":
                    return on.cmd(Cmd.llm("a")).cmd(Cmd.llm("b"))
                case "b=1":
                    return on.cmd(Cmd.ask_user("q", "?"))
                case _:
                    return on

    task = ByHand(Questions)
    task.say()
    task.give("b", "1")
    return task


def test_a_commands_own_policy_comes_before_the_skills() -> None:
    """
    Retry policy: the command's, else the skill's.
    """
    own = RetryPolicy(max_retries=1, base=7)
    task = two(Cmd.llm("a", retry=own), Cmd.llm("b"), retry=RetryPolicy(base=3))

    task.fail("a", busy())
    task.fail("b", busy())

    assert task.alarms == [2 + 7, 3 + 3]


@pytest.mark.parametrize("command", [Cmd.skill("child", "other", "hi"), Cmd.workflow("child", "Other")])
def test_a_child_is_never_run_twice(command: Any) -> None:
    """
    A child task or workflow retries what it does itself, and its id is taken: its failure is final.
    """
    task = two(command)

    task.fail("child", busy())

    assert heard(task) == ["start=go", "child failed"]


def test_retry_after_is_honoured() -> None:
    """
    Where the other side asks for a longer wait, it gets it; and a nonsensical one does not stop the fold.
    """
    task = two(Cmd.llm("a"), Cmd.llm("b"), Cmd.llm("c"))

    task.fail("a", busy(retry_after=30))
    task.fail("b", busy(retry_after=0.5))
    task.fail("c", busy(retry_after=1e300))

    assert task.alarms == [2 + 30, 3 + 1, 4 + 30 * 24 * 3600]


# --- how it ends


def test_a_task_with_nothing_to_wait_for_is_stalled() -> None:
    """
    A forgotten case does not leave a task that never ends: it fails in the same entry and says where.
    """

    @flow_skill(id="forgets")
    class Forgets(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            return on.cmd(Cmd.llm("a")) if isinstance(event, UserMessage) else Transition.ignore()

    task = ByHand(Forgets)
    task.say()
    task.give("a", "x")

    assert task.status is Status.FAILED
    assert task.reason.startswith(
        "stalled: 'Log' answered llm_result without asking for anything, waiting or ending; its state is {"
    )


class Bad(BaseModel):
    count: int = 0


def test_a_bug_fails_the_task_and_keeps_its_state() -> None:
    """
    The state is as before the event; the reason says what was raised, the note where.
    """

    @flow_skill(id="buggy")
    class Buggy:
        @staticmethod
        def initial() -> Bad:
            return Bad()

        def on_event(self, state: Bad, event: Event, ctx: Ctx) -> Transition:
            if isinstance(event, UserMessage):
                return Transition.to(Bad(count=1)).cmd(Cmd.llm("a"))
            state.count = 99
            return Transition.to(Bad.model_validate({"count": dict[str, int]()["nothing"]}))

    task = ByHand(Buggy)
    task.say()
    entry = task.give("a", "x")

    assert task.reason == "bug: KeyError: 'nothing'"
    assert task.task.state == {"count": 1}
    assert "test_fold in on_event" in entry.note
    assert entry.note.endswith("in on_event")


def test_the_place_of_a_bug_is_in_the_authors_code() -> None:
    """
    Where a library raises, the note still names the author's line that called it.
    """

    @flow_skill(id="misuses")
    class Misuses:
        @staticmethod
        def initial() -> Bad:
            return Bad()

        def on_event(self, state: Bad, event: Event, ctx: Ctx) -> Transition:
            return Transition.to(Bad.model_validate({"count": "many"}))

    task = ByHand(Misuses)
    entry = task.say()

    assert task.reason.startswith("bug: ValidationError")
    assert entry.note.endswith("in on_event")


def test_leaving_the_program_fails_the_task_alone() -> None:
    """
    A skill that calls `sys.exit` ends its task, not the worker.
    """

    @flow_skill(id="exits")
    class Exits:
        @staticmethod
        def initial() -> Bad:
            return Bad()

        def on_event(self, state: Bad, event: Event, ctx: Ctx) -> Transition:
            raise SystemExit(3)

    task = ByHand(Exits)
    task.say()

    assert task.reason == "bug: SystemExit: 3"


@pytest.mark.parametrize("state", ["planned", "running", "paused", "retrying"])
def test_cancel_works_from_every_open_state(state: str) -> None:
    """
    The task ends as canceled, nothing is going on any more, and the lifecycle's table is not asked.
    """
    task = ByHand(two(Cmd.llm("a")).skill) if state == "planned" else two(Cmd.llm("a"))
    if state == "paused":
        task = two_then_question()
    if state == "retrying":
        task.fail("a", busy())
    assert task.state == state

    entry = task.cancel("changed my mind")

    assert (task.state, task.status, task.reason) == (TaskState.FAILED, Status.CANCELED, "changed my mind")
    assert (entry.moves, wanted(task.task), finished(task.task)) == ((), {}, True)
    assert "has ended (canceled)" in task.cancel().refused


class Rejects(Listener):
    def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
        return on.cmd(Cmd.llm("a")) if name_of(event) == "start=go" else Transition.reject("Not my trade.")


def test_a_skill_may_decline_the_first_message() -> None:
    """
    A rejected task failed for a reason of its own status.
    """
    task = ByHand(flow_skill(id="rejects")(Rejects))
    task.say("please")

    assert (task.state, task.status, task.reason) == (TaskState.FAILED, Status.REJECTED, "Not my trade.")


def test_a_skill_may_decline_the_first_message_it_takes() -> None:
    """
    A message that was refused at the edge is not the first one that the skill heard.
    """

    @flow_skill(id="rejects_orders", input=Bad)
    class RejectsOrders(Rejects):
        pass

    task = ByHand(RejectsOrders)
    assert task.say("not an order").refused
    task.feed(UserMessage(content=Content.from_data({"count": 1})))

    assert task.status is Status.REJECTED


def test_a_skill_cannot_decline_later() -> None:
    """
    What was accepted can only fail.
    """
    task = ByHand(flow_skill(id="rejects_late")(Rejects))
    task.say()
    task.give("a", "x")

    assert (task.status, task.reason) == (
        Status.FAILED,
        "a skill rejects a task in answer to its first message only; use `fail` later on",
    )


def test_completing_drops_what_is_in_flight() -> None:
    """
    A task that is done wants nothing more; a late result is refused.
    """

    @flow_skill(id="first_wins")
    class FirstWins(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            if isinstance(event, UserMessage):
                return on.cmd(Cmd.llm("a")).cmd(Cmd.llm("b"))
            return Transition.complete(Log(heard=["done"])).message("Done.")

    task = ByHand(FirstWins)
    task.say()
    late = result(task.pending("b"), "late")
    task.give("a", "x")

    assert (task.status, wanted(task.task), heard(task), task.said) == (Status.COMPLETED, {}, ["done"], ["Done."])
    assert "has ended (completed)" in task.feed(late).refused


def test_a_task_does_not_end_and_ask_at_once() -> None:
    """
    Nobody would wait for the command, so it is an error and not silence.
    """

    @flow_skill(id="fire_and_forget")
    class FireAndForget(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            return Transition.complete().cmd(Cmd.tool("notify", "notify"))

    task = ByHand(FireAndForget)
    task.say()

    assert task.reason.startswith("the task ends, and asks for 'notify' all the same")


def test_two_in_flight_need_two_ids() -> None:
    """
    Twins are the author's error, and neither is started; one after the other is fine.
    """
    task = ByHand(two(Cmd.llm("a"), Cmd.llm("a")).skill)
    task.say()
    assert task.reason.startswith("two commands with the id 'a' are in flight at once")
    assert task.journal[0].commands == ()

    @flow_skill(id="repeats")
    class Repeats(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            return on.cmd(Cmd.llm("a"))

    again = ByHand(Repeats)
    again.say()
    again.give("a", "1")
    again.give("a", "2")
    assert heard(again) == ["start=go", "a=1", "a=2"]


# --- refusals


def why(task: ByHand, event: Event) -> str:
    """The refusal, which must be the same for a validator and for the fold, and must change nothing else."""
    before, reason = task.task, refusal(task.skill, task.task, event, task.task.at)
    entry = task.feed(event)
    assert entry.refused == reason
    assert (entry.moves, entry.commands, entry.messages, entry.held) == ((), (), (), False)
    kept = {"seq": before.seq, "at": before.at, "refused": before.refused}
    assert task.task.model_copy(update=kept) == before
    assert (task.task.seq, task.task.refused) == (before.seq + 1, before.refused + 1)
    return reason


def test_refusals_say_what_came_and_what_was_awaited() -> None:
    """
    What cannot be taken changes nothing but the number and the count, and says why.
    """
    task = two(Cmd.llm("a"), Cmd.sleep("s", 5), Cmd.ask_user("q", "?"))
    a, s = task.pending("a").invocation_id, task.pending("s").invocation_id

    assert why(task, message(slot="x")) == "nothing waits for an answer to 'x'; open: 'q'"
    assert why(task, message(gate="T/9.9")) == "nothing waits for an answer to 'T/9.9'; open: 'q'"
    assert why(task, LlmResult(id="a", invocation_id=a, value="")) == f"command {a} is not out"
    task.say("yes", slot="q")
    assert why(task, message()) == "the task waits for no message now; it is running"
    assert why(task, LlmResult(id="a", invocation_id="T/7.7", value="")) == "no command T/7.7 waits for an outcome"
    assert why(task, LlmResult(id="b", invocation_id=a, value="")) == f"command {a} is 'a', not 'b'"
    assert why(task, ToolResult(id="a", invocation_id=a)) == f"command {a} is a llm, which tool_result does not answer"
    assert why(task, CommandFailed(id="s", invocation_id=s, failure=busy())) == "a sleep cannot fail"
    assert why(task, BackoffOver(invocation_id=a, retry=1)) == f"{a} is not waiting to be tried again"
    assert why(task, BackoffOver(invocation_id=s, retry=1)) == f"{s} is not waiting to be tried again"


def test_a_stale_alarm_is_refused() -> None:
    """
    An alarm for an older retry, or for one that was rung already, changes nothing.
    """
    task = two(Cmd.llm("a"))
    a = task.pending("a").invocation_id
    task.fail("a", busy())
    assert why(task, BackoffOver(invocation_id=a, retry=2)) == f"{a} waits for retry 1, not 2"
    task.ring("a")
    assert why(task, BackoffOver(invocation_id=a, retry=1)) == f"{a} is not waiting to be tried again"


def test_a_second_outcome_is_refused() -> None:
    """
    A command comes back once: after its result, after its failure was held, and while it backs off.
    """
    task = two_then_question()
    a = task.pending("a").invocation_id
    again = CommandFailed(id="a", invocation_id=a, failure=refused())
    task.feed(again)
    assert why(task, again) == f"command {a} has its outcome already"

    task = two(Cmd.llm("a"), Cmd.llm("b"))
    done = result(task.pending("a"), "x")
    task.feed(done)
    assert why(task, done) == f"no command {a} waits for an outcome"
    task.fail("b", busy())
    b = task.pending("b").invocation_id
    assert why(task, result(task.pending("b"), "x")) == f"command {b} is not out"


def test_a_delivery_is_taken_once() -> None:
    """
    The same delivery id is refused, naming the entry that took it; the last hundred are remembered.
    """

    @flow_skill(id="chats")
    class Chats(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            return on.cmd(Cmd.ask_user("q", "?"))

    task = ByHand(Chats)
    task.say("hello", delivery_id="d1")
    assert why(task, message("hello", delivery_id="d1")) == "delivery 'd1' was taken before, as entry 1"

    for number in range(2, 102):
        assert not task.say("more", delivery_id=f"d{number}").refused

    assert len(task.task.seen) == 100
    assert task.say("again", delivery_id="d2").refused
    assert not task.say("so old that it is forgotten", delivery_id="d1").refused


class Order(BaseModel):
    amount: int


class Confirmed(BaseModel):
    kind: Literal["yes"]


@flow_skill(id="typed", input=Order)
class Typed(Listener):
    def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
        if isinstance(event, UserMessage) and event.slot is None:
            return on.cmd(Cmd.ask_user("confirm", "Sure?", expect=Confirmed))
        return Transition.complete()


def test_input_that_does_not_fit_is_refused_at_the_edge() -> None:
    """
    A first message, or a reply, that breaks its type leaves the task as it was: it still waits.
    """
    task = ByHand(Typed)
    assert (
        why(task, message("hi"))
        == "skill 'typed' starts from data that fits Order; got text only; send data with the fields amount"
    )
    wrong = UserMessage(content=Content.from_data({"amount": "lots"}))
    assert why(task, wrong).startswith(
        "skill 'typed' starts from data that fits Order: amount: Input should be a valid"
    )
    assert task.state is TaskState.PLANNED
    task.feed(UserMessage(content=Content.from_data({"amount": 3})))

    assert why(task, message("yes")).startswith("the reply to 'confirm' must fit Confirmed: Input should be")
    assert (task.state, task.waiting) == (TaskState.PAUSED, ["confirm"])
    task.feed(UserMessage(content=Content.from_data({"kind": "yes"})))

    assert task.status is Status.COMPLETED


class Explodes(BaseModel):
    def __init__(self, **data: Any) -> None:
        raise KeyError("boom")


@flow_skill(id="explosive")
class Explosive(Listener):
    def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
        return on.cmd(Cmd.ask_user("q", "?", expect=Explodes))


def test_a_check_that_breaks_refuses() -> None:
    """
    A validator that raises what it should not refuses the reply; the task stays as it is.
    """
    task = ByHand(Explosive)
    task.say()

    refusal = why(task, UserMessage(content=Content.from_data({"x": 1})))

    assert refusal == "the reply to 'q' must fit Explodes: its check failed with KeyError: 'boom'"


# --- sleeps and progress


def test_a_sleep_is_an_alarm() -> None:
    """
    A sleep is due so many seconds after it was sent out, keeps that time, and comes back as TimerFired.
    """
    task = two(Cmd.sleep("nap", 90), Cmd.llm("a"))
    assert task.alarms == [91.0]
    task.give("a", "x")
    assert task.alarms == [91.0]

    task.ring("nap")

    assert heard(task) == ["start=go", "a=x", "nap=None"]


def test_what_is_wanted_has_a_key_for_each_try() -> None:
    """
    The key of a thing stays while the same thing is wanted, and changes with the try.
    """
    task = two(Cmd.llm("a"), Cmd.sleep("s", 1))
    assert list(wanted(task.task)) == ["T/1.1#1", "T/1.2"]
    task.fail("a", busy())
    assert list(wanted(task.task)) == ["T/1.1~1", "T/1.2"]
    task.ring("a")
    assert list(wanted(task.task)) == ["T/1.1#2", "T/1.2"]


def test_progress_stays_until_it_is_replaced() -> None:
    """
    A line on what is going on is in the entry that set it, and in every snapshot after it.
    """

    @flow_skill(id="reports")
    class Reports(Listener):
        def answer(self, event: Event, ctx: Ctx, on: Transition) -> Transition:
            return on.status("reading").cmd(Cmd.llm("a")) if isinstance(event, UserMessage) else on.cmd(Cmd.llm("b"))

    task = ByHand(Reports)
    assert task.say().progress == "reading"
    assert task.give("a", "x").progress is None
    assert task.task.progress == "reading"


def test_the_error_for_a_missing_entry_names_those_that_exist() -> None:
    """
    A task whose start was refused has no entries.
    """
    assert no_entry("T", 9, 3, 6) == "task 'T' has the entries 3 to 6, not 9"
    assert no_entry("T", 1, 1, 0) == "task 'T' has no entries, so none with the number 1"
