"""What a failure leads to, at the seams where several rules meet: after the end, while paused, while redoing."""

import asyncio
import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue, RootModel

from refold import (
    Cmd,
    CommandError,
    Content,
    Ctx,
    Event,
    GatePolicy,
    RetryPolicy,
    Status,
    Step,
    TaskState,
    TimerFired,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    table,
    tool,
)
from refold.core.events import ChildAsked, DependencyResolved
from refold.core.fold.journal import Entry
from refold.core.fold.questions import refused_answers
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import finished
from refold.core.waits import Wait
from tests.core.byhand import ByHand, busy, message, refused, unknown

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


@tool(effect="idempotent")
def refund(result: JsonValue) -> None: ...


@tool(effect="compensate", undo=refund)
def charge(cents: int) -> JsonValue:
    return cents


def charging() -> ByHand:
    """A task that charges and looks something up at the same time."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid, _ = await ctx.gather(ctx.tool(charge, cents=5), ctx.tool("look", retry=RetryPolicy(max_retries=1)))
        return ctx.complete(f"paid {paid}")

    task = ByHand(table("charges", Step("begin", begin).start()))
    task.say()
    return task


# --- a failure that is held when the task ends


def test_a_held_failure_is_not_performed_after_a_cancel() -> None:
    """
    The charge was declined while its sibling backed off; nobody charges again because the task is canceled.
    """
    task = charging()
    task.fail("look", busy())
    assert task.state is TaskState.RETRYING
    task.fail("charge", refused())

    entry = task.cancel()

    assert (task.out, finished(task.task)) == ([], True)
    assert "charge: did not take place: forbidden" in entry.note
    assert task.folded() == task.task


@pytest.mark.parametrize("how", ["denial", "timeout", "cancel"])
def test_a_failure_held_at_a_gate_is_not_performed_after_it(how: str) -> None:
    """
    Whichever way the gate ends the task.
    """

    @flow_skill(id="pays_at_a_gate")
    class Pays:
        @staticmethod
        def initial() -> dict[str, str]:
            return {}

        def on_event(self, state: dict[str, str], event: Event, ctx: Ctx) -> Transition:
            match event:
                case UserMessage():
                    return Transition.to(state).cmd(Cmd.tool("charge", charge, cents=5)).cmd(Cmd.tool("look", "look"))
                case ToolResult(id="look"):
                    return Transition.await_approval("sure", "Sure?", state, policy=GatePolicy(grace_s=0))
                case _:
                    return Transition.ignore(state)

    task = ByHand(Pays)
    task.say()
    task.give("look")
    task.fail("charge", refused())
    assert task.state is TaskState.PAUSED
    match how:
        case "denial":
            task.decide("sure", approved=False)
        case "timeout":
            task.clock("~timeout")
        case _:
            task.cancel()

    assert (task.out, finished(task.task)) == ([], True)


@pytest.mark.parametrize("stands", ["out", "declined late", "backing off", "held"])
def test_an_effect_that_an_operator_says_took_place_is_compensated(stands: str) -> None:
    """
    Also where the task is canceled before the receipt of that outcome is written, or cannot be written.
    """
    task = charging()
    task.fail("charge", unknown())
    task.feed(DependencyResolved(outcome="c-9"))
    match stands:
        case "backing off":
            task.fail("charge", busy())
        case "held":
            task.fail("look", busy())
            task.fail("charge", refused())
        case _:
            pass
    task.cancel()
    match stands:
        case "out":
            task.give("charge", "c-9")
        case "declined late":
            task.fail("charge", refused())
        case _:
            pass

    assert task.out == ["undo charge"]
    assert task.pending("undo charge").command.args == {"result": "c-9"}  # type: ignore[union-attr]  # a tool
    task.give("undo charge")
    new = task.recovered()
    assert sorted(new.out) == ["charge", "look"]
    assert new.pending("charge").given is None  # that one was compensated


# --- an effect that is performed again


def redoing(*, cut: bool = False) -> ByHand:
    """A recovered task that performs two compensated charges again before it goes on."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        one = await ctx.tool(charge, cents=1, id="one")
        mailed = await ctx.tool("mail", text=f"paid {one}")
        return ctx.complete(f"{one} {mailed}")

    task = ByHand(table("redoes", Step("begin", begin).start()), cut=cut)
    task.say()
    task.give("one", "c-1")
    task.fail("mail")
    task.give("undo one")
    return task.recovered()


@BOTH
def test_an_outcome_given_without_a_receipt_lets_the_task_go_on(cut: bool) -> None:
    """
    An operator said what the repeated charge came to; no receipt could be written; the task goes on all the same.
    """
    task = redoing(cut=cut)
    task.fail("one", unknown())
    task.feed(DependencyResolved(outcome="c-9"))
    entry = task.fail("one", refused())

    assert "no receipt says what came of it" in entry.note
    assert task.out == ["mail"]
    task.give("mail", "sent")
    assert task.status is Status.COMPLETED


@BOTH
def test_nothing_else_is_sent_while_an_effect_is_performed_again(cut: bool) -> None:
    """
    The mail that had failed waits until the charge that it tells of is there again, and tells of that one.
    """
    task = redoing(cut=cut)
    assert task.out == ["one"]

    task.give("one", "c-2")

    assert task.out == ["mail"]
    assert task.pending("mail").command.args == {"text": "paid c-2"}  # type: ignore[union-attr]  # a tool
    task.give("mail", "sent")
    assert (task.status, task.said) == (Status.COMPLETED, ["c-2 sent"])


# --- several failures at one await


@pytest.mark.parametrize("order", ["abc", "cba", "acb", "cab", "bac", "bca"])
@pytest.mark.parametrize("style", ["gather", "parallel"])
def test_recovery_asks_again_for_all_that_failed_together(order: str, style: str) -> None:
    """
    Whichever of them came first, and whether they were gathered or ran side by side.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        calls = [ctx.tool(name) for name in "abc"]
        if style == "gather":
            values: Any = await ctx.gather(*calls)
        else:
            values = await ctx.parallel(*(one(call) for call in calls))
        return ctx.complete(" ".join(values))

    async def one(call: Any) -> str:
        value: str = await call
        return value

    task = ByHand(table("several", Step("begin", begin).start()))
    task.say()
    for name in order:
        task.give("b", "B") if name == "b" else task.fail(name)
    assert task.status is Status.FAILED

    new = task.recovered()

    assert sorted(new.out) == ["a", "c"]
    new.give("c", "C")
    new.give("a", "A")
    assert (new.status, new.said) == (Status.COMPLETED, ["A B C"])


# --- the last resort


class _Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "error", [_Unreadable(), asyncio.CancelledError(), GeneratorExit(), SystemExit(3), BaseException("odd")]
)
def test_whatever_a_skill_raises_fails_its_task_and_no_more(error: BaseException) -> None:
    """
    Errors whose message cannot be read, and those that are no `Exception`.
    """

    def begin(ctx: Ctx, content: Content) -> Transition:
        raise error

    task = ByHand(table("raises", Step("begin", begin).start()))
    task.say()

    assert task.status is Status.FAILED
    assert task.reason.startswith(f"bug: {type(error).__name__}: ")
    assert Snapshot.model_validate_json(task.task.model_dump_json()) == task.task


def test_a_step_that_raises_stop_iteration_is_named_by_its_own_function() -> None:
    """
    Python raises a `RuntimeError` in its place, at the line that resumes the coroutine: one of refold's.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(next(iter(())))

    task = ByHand(table("raises", Step("begin", begin).start()))

    assert task.say().note.endswith(f"at {__name__} in begin")


def test_what_stops_the_worker_is_not_taken_for_the_skill() -> None:
    """
    Ctrl-C while a skill is called stops the program.
    """

    def begin(ctx: Ctx, content: Content) -> Transition:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ByHand(table("stops", Step("begin", begin).start())).say()


def test_a_keyboard_interrupt_in_a_workers_thread_is_the_skills() -> None:
    """
    No signal arrives there: the skill raised it itself, and it would end each worker that takes the task.
    """

    def begin(ctx: Ctx, content: Content) -> Transition:
        raise KeyboardInterrupt

    task = ByHand(table("stops", Step("begin", begin).start()))
    with ThreadPoolExecutor(1) as worker:
        worker.submit(task.say).result()

    assert task.status is Status.FAILED
    assert task.reason.startswith("bug: KeyboardInterrupt")


def test_a_bug_of_the_core_ends_the_task_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The reason names it, what is to be compensated is, and the journal is kept.
    """
    task = charging()
    task.give("charge", "c-1")

    def broken(*args: Any) -> None:
        raise RuntimeError("a bug in the core")

    monkeypatch.setattr("refold.core.fold.apply.settle", broken)
    entry = task.give("look")

    assert (task.status, task.reason) == (Status.FAILED, "bug: RuntimeError: a bug in the core")
    assert task.out == ["undo charge"]
    assert [one.seq for one in task.journal] == [1, 2, 3]
    assert entry.moves[-1].to_state is TaskState.FAILED


# --- times


def test_a_dependency_cannot_put_its_probe_beyond_all_dates() -> None:
    """
    However long it asks to wait.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool("charge", retry=RetryPolicy(max_retries=0, on_exhausted="block")))

    task = ByHand(table("waits", Step("begin", begin).start()))
    task.say()

    task.fail("charge", busy(retry_after=1e13))

    assert task.alarms == [2 + 30 * 24 * 3600.0]


# --- gates and questions that time out


def gated(policy: GatePolicy) -> ByHand:
    async def begin(ctx: Ctx, content: Content) -> Transition:
        decision = await ctx.approve("sure", "Sure?", policy=policy)
        return ctx.complete(f"{decision.approver} decided")

    task = ByHand(table("gated", Step("begin", begin).start()))
    task.say()
    return task


def test_a_grant_after_the_timeout_is_late_though_no_alarm_came() -> None:
    """
    As after an outage, when the decision reaches the task before its timer does.
    """
    task = gated(GatePolicy(timeout_s=60, grace_s=300))

    entry = task.decide("sure", second=100)

    assert (task.status, task.reason) == (Status.FAILED, "approval_timeout")
    assert "late grant by Ann" in entry.note
    new = task.recovered()
    assert (new.status, new.said) == (Status.COMPLETED, ["Sure?", "Ann decided"])


@pytest.mark.parametrize(
    ("approved", "second", "why"),
    [
        pytest.param(True, 1000, "the time for a late grant is over", id="too late"),
        pytest.param(False, 100, "nothing is decided there any more", id="a denial"),
    ],
)
def test_a_decision_after_the_timeout_is_refused(approved: bool, second: float, why: str) -> None:
    """
    The refusal says when the gate timed out.
    """
    task = gated(GatePolicy(timeout_s=60, grace_s=300))

    entry = task.decide("sure", approved, second=second)

    assert entry.refused.startswith("gate 'sure' timed out at 2026-01-01 00:01:01")
    assert why in entry.refused


def test_a_live_fork_starts_without_the_grants_of_the_other_task() -> None:
    """
    They were for the other task's effects.
    """
    task = gated(GatePolicy(needed=2))
    task.decide("sure", by="Ann")

    branch = task.forked(2, live=True)

    assert branch.task.waits[0].grants == ()


async def patient(ctx: Ctx, content: Content) -> Transition:
    try:
        answer = await ctx.ask("colour", "Which colour?", timeout_s=60)
    except CommandError as error:
        return ctx.complete(f"{error.id}: {error.failure.type}")
    return ctx.complete(answer.text)


@BOTH
def test_a_question_times_out_at_the_step_that_asked(cut: bool) -> None:
    """
    As a failure that the step can catch.
    """
    task = ByHand(table("patient", Step("begin", patient).start()), cut=cut)
    task.say()
    assert (task.status, task.alarms) == (Status.INPUT_REQUIRED, [61.0])

    entry = task.clock("~timeout")

    assert (task.status, task.said[-1]) == (Status.COMPLETED, "colour: timeout")
    assert entry.closed == ("T/1.1",)
    assert task.folded() == task.task


def test_an_answer_in_time_is_an_answer() -> None:
    """
    And its alarm is wanted no more.
    """
    task = ByHand(table("patient", Step("begin", patient).start()))
    task.say()

    task.say("red")

    assert (task.status, task.said[-1], task.alarms) == (Status.COMPLETED, "red", [])


def test_an_answer_after_the_timeout_is_refused() -> None:
    """
    Though no alarm came yet.
    """
    task = ByHand(table("patient", Step("begin", patient).start()))
    task.say()

    entry = task.feed(message("red"), second=100)

    assert entry.refused == "question 'colour' timed out at 2026-01-01 00:01:01"


@BOTH
def test_an_answer_goes_to_the_question_that_has_not_timed_out(cut: bool) -> None:
    """
    A message that names no question answers the one that still waits, although the other's alarm is late.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        phone, name = ctx.ask("phone", "Your phone?", timeout_s=60, expect=int), ctx.ask("name", "Your name?")
        try:
            await ctx.gather(phone, name)
        except CommandError as error:
            return ctx.complete(str(error))
        return ctx.complete()

    task = ByHand(table("asks", Step("begin", begin).start()), cut=cut)
    task.say()

    entry = task.feed(message("Ada"), second=100)

    assert (entry.refused, entry.closed, task.waiting) == ("", ("T/1.2",), ["phone"])
    task.clock("~timeout")
    assert (task.status, task.said[-1]) == (Status.COMPLETED, "phone: nobody answered within 60 s")


async def gathered(ctx: Ctx, *asked: Any) -> str:
    try:
        await ctx.gather(*asked)
    except CommandError as late:
        return str(await ctx.tool("mail", late=late.id))
    return "all"


async def by_itself(ctx: Ctx, *asked: Any) -> str:
    return " ".join(await ctx.parallel(*(gathered(ctx, one) for one in asked)))


async def asked_anew(ctx: Ctx, *asked: Any) -> str:
    said = await gathered(ctx, *asked)
    return f"{said} {await gathered(ctx, ctx.ask('c', 'C?', timeout_s=60))}"


@BOTH
@pytest.mark.parametrize("how", [gathered, by_itself, asked_anew])
@pytest.mark.parametrize("gates", [False, True], ids=["questions", "gates"])
@pytest.mark.parametrize("answered", [None, "a", "b"])
def test_a_timeout_is_caught_beside_another_outcome(how: Any, gates: bool, answered: str | None, cut: bool) -> None:
    """
    What closed together with the question that timed out belongs to the same await, and fails nothing afterwards.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(timeout_s=60, reminder_s=None, on_timeout="continue")
        calls = [ctx.approve(id, "?", policy=policy) if gates else ctx.ask(id, "?", timeout_s=60) for id in "ab"]
        return ctx.complete(await how(ctx, *calls))

    task = ByHand(table("asks", Step("begin", begin).start()), cut=cut)
    task.say()
    if answered is not None:
        task.decide(answered) if gates else task.say("yes", slot=answered)
    while not task.task.ended:
        if task.waiting:
            task.clock("~timeout")
        else:
            task.give(next(iter(task.task.pending.values())).command.id, "mailed")

    assert (task.status, task.task.held) == (Status.COMPLETED, ())
    assert task.said[-1].startswith("mailed" if answered is None or how is not by_itself else ("all", "mailed"))
    assert task.folded() == task.task


def test_a_timeout_that_nobody_catches_fails_the_task() -> None:
    """
    With the question in the reason.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.ask("colour", "Which?", timeout_s=5)).text)

    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()

    task.clock("~timeout")

    assert (task.status, task.reason) == (Status.FAILED, "colour: nobody answered within 5 s")


def test_a_gate_may_let_the_skill_go_on_after_its_timeout() -> None:
    """
    Where its policy says `on_timeout="continue"`.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        try:
            await ctx.approve("sure", "Sure?", policy=GatePolicy(timeout_s=60, on_timeout="continue"))
        except CommandError as error:
            return ctx.complete(error.failure.type)
        return ctx.complete("granted")

    task = ByHand(table("gated", Step("begin", begin).start()))
    task.say()

    task.clock("~timeout")

    assert (task.status, task.said[-1]) == (Status.COMPLETED, "timeout")


# --- timers while the task waits


class Nags(BaseModel):
    times: int = 0


@flow_skill(id="nags")
class Nagging:
    """Asks, and says something every minute until the answer is there; gives up after three minutes."""

    @staticmethod
    def initial() -> Nags:
        return Nags()

    def on_event(self, state: Nags, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage(slot=None):
                return Transition.await_input("colour", "Which?", state).cmd(Cmd.sleep("nag", 60))
            case TimerFired() if state.times == 2:
                return Transition.fail("nobody answers")
            case TimerFired():
                return Transition.to(Nags(times=state.times + 1)).message("Still there?").cmd(Cmd.sleep("nag", 60))
            case UserMessage(content=content):
                return Transition.complete().message(f"{content.text} after {state.times}")
            case _:
                return Transition.ignore(state)


@BOTH
def test_a_timer_reaches_a_reducer_while_it_waits(cut: bool) -> None:
    """
    The question stays open; the task is paused before and after.
    """
    task = ByHand(Nagging, cut=cut)
    task.say()
    entry = task.ring("nag")
    assert (task.status, task.said) == (Status.INPUT_REQUIRED, ["Which?", "Still there?"])
    assert [str(move.event) for move in entry.moves] == ["approval_granted", "pause_for_approval"]
    assert (entry.status, task.waiting) == (None, ["colour"])

    task.say("red")

    assert (task.status, task.said[-1]) == (Status.COMPLETED, "red after 1")
    assert task.folded() == task.task


def test_a_timer_may_end_a_task_that_waits() -> None:
    """
    The reducer gives up.
    """
    task = ByHand(Nagging)
    task.say()

    for _ in range(3):
        task.ring("nag")

    assert (task.status, task.reason) == (Status.FAILED, "nobody answers")


# --- parts


def test_an_early_message_answers_what_a_part_asks() -> None:
    """
    It was kept for the next question, whoever asks it.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("child", "child", "go")).text)

    task = ByHand(table("parent", Step("begin", begin).start()))
    task.say()
    task.say("red", early=True)
    question = Wait(gate="T/1.1/1.1", ask=Cmd.ask_user("colour", "Which?"), since=task.task.at)

    task.feed(ChildAsked(invocation_id="T/1.1", waits=(question,)))

    assert [answer.content.text for answer in task.pending("child").answers] == ["red"]
    assert (task.task.early, task.status) == ((), Status.WORKING)


class Sized(RootModel[int]):
    """A size in centimetres."""


@BOTH
@pytest.mark.parametrize("between", [False, True], ids=["child", "child of a child"])
def test_an_answer_that_a_part_refuses_is_asked_for_again(cut: bool, between: bool) -> None:
    """
    A worker of the task above knows no type of a part on another queue, and passes on whatever is said. The part
    refuses what does not fit; then the question is open at the task above again, and takes another answer.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("child", "child", "go")).text)

    async def asks(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(str((await ctx.ask("size", "Which size?", expect=Sized)).root))

    parents = [ByHand(table("parent", Step("begin", begin).start()), cut=cut) for _ in range(2 if between else 1)]
    tasks = [ByHand(table("asks", Step("begin", asks).start()), cut=cut), *parents]
    for task in tasks:
        task.say()
    size = tasks[0].task.waits[0]
    elsewhere = size.model_copy(update={"ask": size.ask.model_copy(update={"expect": {"type": "integer"}})})

    def tell(refused: Mapping[str, str]) -> None:
        """Each part tells the task above what it waits for."""
        for part, task in itertools.pairwise(tasks):
            waits = part.task.open_waits if part is not tasks[0] else (elsewhere,)
            task.feed(ChildAsked(invocation_id="T/1.1", waits=waits, refused=dict(refused)))
            refused = refused_answers(task.journal[-1], task.task)

    def pass_on() -> Entry:
        """Each task passes its answer on; the entry with which the part takes it or refuses it."""
        for task, part in itertools.pairwise(reversed(tasks)):
            (answer,) = task.pending("child").answers
            part.feed(answer)
        return tasks[0].journal[-1]

    tell({})
    top = tasks[-1]
    top.say("large")
    refused = pass_on()
    assert "must fit Sized" in refused.refused
    tell(refused_answers(refused, tasks[0].task))

    assert [wait.gate for wait in top.task.open_waits] == [size.gate]
    assert top.status is Status.INPUT_REQUIRED
    assert "the part refuses an answer: the reply to 'size' must fit Sized" in top.journal[-1].note
    assert not top.say("40").refused
    assert not pass_on().refused
    assert tasks[0].said[-1] == "40"
    assert top.folded() == top.task


class Failed(BaseModel):
    kind: str = "failed"
    reason: str = ""


def test_a_state_that_only_sounds_like_an_end_is_shown_in_the_reason() -> None:
    """
    `Transition.to(Failed(reason))` ends nothing by itself; the task stalls, and the reason is not lost.
    """

    @flow_skill(id="sounds")
    class Sounds:
        @staticmethod
        def initial() -> Failed:
            return Failed()

        def on_event(self, state: Failed, event: Event, ctx: Ctx) -> Transition:
            return Transition.to(Failed(reason="no such account"))

    task = ByHand(Sounds)
    task.say()

    assert task.reason.startswith("stalled: 'failed' answered user_message without asking")
    assert "no such account" in task.reason
