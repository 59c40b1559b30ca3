"""Blocked: a dependency that is down, or an effect of which nobody knows, stops the task without ending it."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from refold import (
    CommandError,
    Content,
    Ctx,
    Failure,
    FailureKind,
    RetryPolicy,
    Status,
    Step,
    TaskState,
    Transition,
    table,
)
from refold.core.events import DependencyResolved
from refold.core.fold.failures import GIVEN_COUNTS, LEFT_ENDS, NO_TOOL_ENDS
from refold.core.retry_policy import LEFT, NO_TOOL
from tests.core.byhand import ByHand, busy, refused, unknown

PATIENT = RetryPolicy(max_retries=2, on_exhausted="block")
BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


class Verdict(BaseModel):
    ok: bool


async def charge(ctx: Ctx, content: Content) -> Transition:
    charged = await ctx.tool("charge", retry=PATIENT)
    return ctx.complete(f"charged {charged}")


async def two(ctx: Ctx, content: Content) -> Transition:
    charged, mailed = await ctx.gather(ctx.tool("charge", retry=PATIENT), ctx.tool("mail", retry=PATIENT))
    return ctx.complete(f"{charged} {mailed}")


def skill(function: Any) -> Any:
    return table("pays", Step("begin", function).start())


def down(function: Any = charge, *, cut: bool = False) -> ByHand:
    """A task whose dependency was down for all its retries."""
    task = ByHand(skill(function), cut=cut)
    task.say()
    for _ in range(2):
        task.fail("charge", busy())
        task.ring("charge")
    task.fail("charge", busy())
    return task


def unsure(function: Any = charge) -> ByHand:
    """A task that does not know whether it charged."""
    task = ByHand(skill(function))
    task.say()
    task.fail("charge", unknown())
    return task


@BOTH
def test_spent_retries_block(cut: bool) -> None:
    """
    Retries come first; then the task is blocked, which the outside sees as working, and waits.
    """
    task = down(cut=cut)

    assert task.moves[-3:] == ["transient_error", "retry", "block_on_dependency"]
    assert (task.state, task.status, task.out) == (TaskState.BLOCKED, Status.WORKING, [])
    assert "probe 1" in task.journal[-1].note
    assert task.folded() == task.task


@BOTH
def test_the_dependency_is_probed_ever_less_often(cut: bool) -> None:
    """
    After 30, 60, 120 s and so on, at most half an hour apart, by the same command under the same id; for ever.
    """
    task = down(cut=cut)
    waits = []
    for _ in range(10):
        waits.append(task.alarms[0] - (task.task.at - task.base.at).total_seconds())
        task.ring("charge")
        assert (task.out, task.state) == (["charge"], TaskState.BLOCKED)
        task.fail("charge", busy())

    assert waits == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800, 1800]
    assert set(task.task.pending) == {"T/1.1"}
    assert task.task.pending["T/1.1"].attempt == 13


@BOTH
def test_a_probe_that_succeeds_lets_the_task_go_on(cut: bool) -> None:
    """
    Nobody need do anything: its result is the command's.
    """
    task = down(cut=cut)
    task.ring("charge")

    task.give("charge", 5)

    assert task.moves[-2:] == ["dependency_resolved", "complete"]
    assert task.said == ["charged 5"]
    assert task.folded() == task.task


def test_retry_after_of_a_probe_is_honoured() -> None:
    """
    What the other side asks for counts, where it is longer.
    """
    task = down()
    task.ring("charge")

    task.fail("charge", busy(retry_after=600))

    assert task.alarms[0] - (task.task.at - task.base.at).total_seconds() == 600


def test_never_is_an_answer_too() -> None:
    """
    A probe that is told "never" reaches the skill, which fails or goes on.
    """
    task = down()
    task.ring("charge")

    task.fail("charge", refused())

    assert task.moves[-2:] == ["dependency_resolved", "fatal_error"]
    assert task.reason == "charge: forbidden"


@BOTH
def test_an_unknown_outcome_blocks_at_once(cut: bool) -> None:
    """
    No retry and no probe: a person must say.
    """
    task = ByHand(skill(charge), cut=cut)
    task.say()

    entry = task.fail("charge", unknown())

    assert (task.moves[-1], task.alarms, task.out) == ("block_on_dependency", [], [])
    assert "a person must decide" in entry.note


def test_a_probe_with_an_unknown_outcome_is_the_last() -> None:
    """
    From then on a person must say.
    """
    task = down()
    task.ring("charge")

    task.fail("charge", unknown())

    assert (task.state, task.alarms, task.out) == (TaskState.BLOCKED, [], [])


HOUR_S = [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1800.0]


def lost(kind: FailureKind = FailureKind.UNKNOWN, again_s: float = 3600.0) -> Failure:
    """A failure of the workers, not of the effect."""
    return Failure(kind=kind, type="worker_lost", message="its worker was lost", again_s=again_s)


def asked_again(task: ByHand, failure: Failure) -> list[float]:
    """The waits after which the command was sent again, while it failed so."""
    waits = []
    task.fail("charge", failure)
    while task.alarms:
        waits.append(task.alarms[0] - (task.task.at - task.base.at).total_seconds())
        task.ring("charge")
        assert (task.state, task.out, task.pending("charge").decided) == (TaskState.BLOCKED, ["charge"], False)
        task.fail("charge", failure)
    return waits


@BOTH
def test_where_the_workers_failed_a_person_is_asked_after_an_hour(cut: bool) -> None:
    """
    Whatever the retry policy says: the command is sent again ever less often, and nothing is decided meanwhile.
    """
    task = ByHand(skill(charge), cut=cut)
    task.say()

    assert asked_again(task, lost()) == HOUR_S
    assert (task.state, task.out) == (TaskState.BLOCKED, [])
    assert "a person must decide" in task.journal[-1].note
    assert task.folded() == task.task


async def chats(ctx: Ctx, content: Content) -> Transition:
    return ctx.complete(await ctx.llm("charge", "x"))


async def hurried(ctx: Ctx, content: Content) -> Transition:
    return ctx.complete(await ctx.llm("charge", "x", retry=RetryPolicy(max_retries=1)))


@BOTH
def test_an_outage_is_waited_out(cut: bool) -> None:
    """
    Retries come first; then the task is blocked and asks again, ever less often, until the service is back.
    """
    away = Failure(kind=FailureKind.TRANSIENT, type="http_503", message="away", again_s=1.0)
    task = ByHand(skill(chats), cut=cut)
    task.say()
    for _ in range(3):
        task.fail("charge", away)
        task.ring("charge")
    assert asked_again_until_back(task, away) == HOUR_S
    task.give("charge", "back")

    assert (task.status, task.task.at - task.base.at > timedelta(hours=1)) == (Status.COMPLETED, True)
    assert task.folded() == task.task


def asked_again_until_back(task: ByHand, failure: Failure) -> list[float]:
    waits = []
    for _ in HOUR_S:
        task.fail("charge", failure)
        assert task.state is TaskState.BLOCKED
        waits.append(task.alarms[0] - (task.task.at - task.base.at).total_seconds())
        task.ring("charge")
    return waits


def test_a_policy_goes_before_an_outage() -> None:
    """
    Who says how often a call is retried wants to know when it failed.
    """
    away = Failure(kind=FailureKind.TRANSIENT, type="http_503", message="away", again_s=1.0)
    task = ByHand(skill(hurried))
    task.say()
    task.fail("charge", away)
    task.ring("charge")
    task.fail("charge", away)

    assert (task.status, task.reason) == (Status.FAILED, "charge: away (no retry left)")


def test_what_no_worker_knows_fails_in_the_end() -> None:
    """
    It is offered to others for as long as the failure says; then the skill is told.
    """
    task = ByHand(skill(charge))
    task.say()

    assert asked_again(task, lost(FailureKind.PERMANENT, again_s=600)) == [30, 60, 120, 240, 480]
    assert (task.status, task.reason) == (Status.FAILED, "charge: its worker was lost")


def test_another_worker_may_do_better() -> None:
    """
    Its result is the command's, and nobody was asked.
    """
    task = ByHand(skill(charge))
    task.say()
    task.fail("charge", lost())
    task.ring("charge")

    task.give("charge", 5)

    assert (task.said, task.moves[-2:]) == (["charged 5"], ["dependency_resolved", "complete"])


def test_an_operator_may_decide_before_the_hour_is_over() -> None:
    """
    Then the hour begins anew, if workers are lost again.
    """
    task = ByHand(skill(charge))
    task.say()
    task.fail("charge", lost())

    task.resolve(retry=True)
    assert (task.state, task.out, task.pending("charge").decided) == (TaskState.RUNNING, ["charge"], True)
    assert asked_again(task, lost()) == HOUR_S

    task.resolve(outcome=5)
    assert task.said == ["charged 5"]


def test_an_outcome_that_an_operator_stated_is_kept_while_workers_are_lost() -> None:
    """
    It is sent again with the command, so nobody is asked twice.
    """
    task = unsure()
    task.feed(DependencyResolved(outcome=5))

    task.fail("charge", lost())
    task.ring("charge")

    given = task.pending("charge").given
    assert given is not None
    assert given.outcome == 5


def test_an_operator_lets_it_be_performed_again() -> None:
    """
    Under the same id, as a new attempt that carries the word, with all its retries before it.
    """
    task = unsure()

    entry = task.resolve(retry=True, by="Ops", comment="not charged")

    pending = task.task.pending["T/1.1"]
    assert "by Ops: not charged" in entry.note
    assert (task.state, task.out, pending.decided, pending.attempt) == (TaskState.RUNNING, ["charge"], True, 2)
    assert "retry 1 of 2 in" in task.fail("charge", busy()).note
    assert not task.task.pending["T/1.1"].decided, "the word was for one try"
    task.ring("charge")
    assert "retry 2 of 2 in" in task.fail("charge", busy()).note
    task.ring("charge")
    assert task.state is TaskState.RUNNING
    task.give("charge", 5)
    assert task.said == ["charged 5"]


@pytest.mark.parametrize("named", [False, True])
def test_an_operator_gives_the_outcome(named: bool) -> None:
    """
    The skill gets it as the command's result.
    """
    task = unsure()

    task.resolve(invocation_id="T/1.1" if named else None, outcome=5, by="Ops")

    assert task.said == ["charged 5"]
    assert task.folded() == task.task


def test_what_a_model_would_not_answer_is_no_outcome() -> None:
    """
    It must fit what the command expects, as a model's answer must; the task is unchanged otherwise.
    """

    async def judge(ctx: Ctx, content: Content) -> Transition:
        text = await ctx.llm("text", retry=PATIENT)
        verdict = await ctx.llm("judge", expect=Verdict)
        return ctx.complete(f"{text} {verdict.ok}")

    task = ByHand(skill(judge))
    task.say()
    task.fail("text", unknown())
    assert "must be a text" in task.resolve(outcome=5).refused
    task.resolve(outcome="Fine.")
    task.fail("judge", unknown())

    assert "must fit Verdict" in task.resolve(outcome={"ok": "perhaps"}).refused
    task.resolve(outcome={"ok": True})

    assert task.said == ["Fine. True"]


def test_what_an_operator_says_is_refused_where_it_makes_no_sense() -> None:
    """
    Nothing is blocked, something else is, or both ways are named at once.
    """
    task = ByHand(skill(charge))
    task.say()
    nothing = task.resolve(retry=True)
    task.fail("charge", unknown())
    other = task.resolve(invocation_id="T/9.9", retry=True)
    both = task.resolve(retry=True, outcome=5)

    assert "no command of the task is blocked; it is running" in nothing.refused
    assert "T/9.9 is not blocked; blocked: T/1.1" in other.refused
    assert "not both" in both.refused
    assert (task.state, task.task.refused) == (TaskState.BLOCKED, 3)


@BOTH
def test_siblings_are_held(cut: bool) -> None:
    """
    What else is in flight goes on; its outcome waits until the task runs again.
    """
    task = down(two, cut=cut)

    assert task.out == ["mail"]
    assert task.give("mail", "sent").held
    task.ring("charge")
    task.give("charge", 5)

    assert task.said == ["5 sent"]
    assert task.folded() == task.task


@BOTH
def test_one_after_the_other_is_blocked(cut: bool) -> None:
    """
    A second command that is lost meanwhile blocks when the first one is released; a person hears of one at a time.
    """
    task = ByHand(skill(two), cut=cut)
    task.say()
    task.fail("charge", unknown())
    assert task.fail("mail", unknown()).held

    task.resolve(outcome=5)
    assert (task.state, [one.command.id for one in task.task.pending.values() if one.blocked]) == ("blocked", ["mail"])
    task.resolve(outcome="sent")

    assert task.said == ["5 sent"]
    assert task.moves.count("block_on_dependency") == 2


def test_cancel_while_blocked() -> None:
    """
    The probe's alarm is gone with it.
    """
    task = down()

    task.cancel("enough")

    assert (task.status, task.alarms, task.out) == (Status.CANCELED, [], [])


def test_late_probes_are_refused() -> None:
    """
    An alarm of an earlier probe, or a result of a command that is not out, changes nothing.
    """
    task = down()
    alarm = task.alarm("charge").event
    task.ring("charge")

    assert task.feed(alarm).refused
    task.fail("charge", busy())
    assert task.feed(alarm).refused
    assert task.give("charge", 5).refused


def test_a_part_is_never_blocked() -> None:
    """
    A task that is a part runs once under its id; whatever becomes of it, the skill hears.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        came = await ctx.skill("part", "other", "go")
        return ctx.complete(came.text)

    task = ByHand(skill(begin))
    task.say()

    task.fail("part", unknown())

    assert (task.status, task.reason) == (Status.FAILED, "part: the response was lost")
    assert isinstance(DependencyResolved(outcome=1).outcome, int)


def test_an_outcome_that_cannot_be_is_asked_for_again() -> None:
    """
    Who finds that out is the worker, before it is written down. The task blocks as before, and takes another word.
    """
    task = unsure()
    task.feed(DependencyResolved(outcome=17))

    task.fail("charge", Failure(kind=FailureKind.UNKNOWN, type="unfit_outcome", message="it cannot be 17"))

    assert task.state is TaskState.BLOCKED
    assert "it cannot be 17" in (task.journal[-1].note or "")
    task.resolve(retry=True)
    assert [one.given for one in task.task.pending.values()] == [None]


def once(policy: RetryPolicy, *, caught: bool = False) -> Any:
    """A skill whose calls have this policy, and which may be prepared for their failure."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        try:
            return ctx.complete(f"charged {await ctx.tool('charge')}")
        except CommandError as error:
            if not caught:
                raise
            return ctx.complete(f"{error.failure.kind}: {error.failure.type}")

    return table("pays", Step("begin", begin).start(), retry=policy)


FAILS, REPEATS = RetryPolicy(on_unknown="fail"), RetryPolicy(on_unknown="repeat")


@BOTH
@pytest.mark.parametrize("caught", [True, False])
def test_a_skill_may_be_told_of_an_unknown_outcome(cut: bool, caught: bool) -> None:
    """
    With `on_unknown="fail"` nobody is asked: the failure is the skill's, which may catch it. The journal says that the
    effect may have taken place, whether or not the task goes on.
    """
    task = ByHand(once(FAILS, caught=caught), cut=cut)
    task.say()
    task.fail("charge", unknown())

    assert task.status is (Status.COMPLETED if caught else Status.FAILED)
    assert [*task.said, task.reason] == (
        ["unknown: outcome_unknown", ""] if caught else ["charge: the response was lost"]
    )
    assert "NOT known whether charge took place: the response was lost" in task.journal[-1].note
    assert task.folded() == task.task


@BOTH
def test_lost_workers_come_before_a_failure(cut: bool) -> None:
    """
    What may still be found out is asked for as long as before; only then is the skill told.
    """
    task = ByHand(once(FAILS), cut=cut)
    task.say()

    assert asked_again(task, lost()) == HOUR_S
    assert (task.status, task.reason) == (Status.FAILED, "charge: its worker was lost")
    assert task.folded() == task.task


@BOTH
def test_what_is_to_be_repeated_is_asked_for_without_end(cut: bool) -> None:
    """
    Once every half hour, until it comes back; no person has to decide, and an operator still may.
    """
    task = ByHand(once(REPEATS), cut=cut)
    task.say()
    task.fail("charge", lost())
    for _ in range(20):
        task.ring("charge")
        task.fail("charge", lost())
    waits = task.alarms[0] - (task.task.at - task.base.at).total_seconds()
    task.ring("charge")
    task.give("charge", 5)

    assert (waits, task.said) == (1800.0, ["charged 5"])
    assert task.folded() == task.task


@BOTH
@pytest.mark.parametrize("type", LEFT)
@pytest.mark.parametrize("release", ["this", "before"])
def test_a_call_that_no_worker_can_make_any_more_is_a_persons(cut: bool, release: str, type: str) -> None:
    """
    It cannot be repeated, and nothing else can look it up: after as long as other workers are asked, a person decides.
    A release that knew it only of a tool that no worker has asked on for every other call.
    """
    gone = unknown().model_copy(update={"type": type, "again_s": 600.0})
    newer = NO_TOOL_ENDS if type == NO_TOOL else LEFT_ENDS
    task = ByHand(once(REPEATS), cut=cut, patched=lambda patch: patch != newer or release == "this")
    task.say()
    task.fail("charge", gone)
    for _ in range(20):
        if task.alarms:
            task.ring("charge")
            task.fail("charge", gone)
    is_asked = "a person must decide" in task.journal[-1].note

    assert (task.state, bool(task.alarms), is_asked) == (TaskState.BLOCKED, release == "before", release == "this")
    assert task.folded() == task.task


def fails_until_nothing_is_due(task: ByHand, failure: Failure) -> None:
    """The charge fails so each time that it is tried."""
    task.fail("charge", failure)
    while task.alarms:
        task.ring("charge")
        task.fail("charge", failure)


@BOTH
@pytest.mark.parametrize("type", LEFT)
@pytest.mark.parametrize("release", ["this", "before"])
def test_an_outcome_that_a_person_gave_counts_though_no_worker_can_read_the_call(
    cut: bool, release: str, type: str
) -> None:
    """
    Else the person was asked for it again and again. Its receipt is not written, as the journal says.
    """
    gone = unknown().model_copy(update={"type": type, "again_s": 600.0})
    task = ByHand(once(RetryPolicy()), cut=cut, patched=lambda patch: patch != GIVEN_COUNTS or release == "this")
    task.say()
    fails_until_nothing_is_due(task, gone)
    task.feed(DependencyResolved(outcome="paid"))
    fails_until_nothing_is_due(task, gone)

    counts = "no receipt says what came of it" in task.journal[-1].note
    assert (task.state, counts) == ((TaskState.DONE, True) if release == "this" else (TaskState.BLOCKED, False))
    assert task.folded() == task.task


@pytest.mark.parametrize(
    ("policy", "failure"),
    [
        pytest.param(REPEATS, unknown(), id="nobody can look it up"),
        pytest.param(RetryPolicy(on_unknown="repeat", probe_s=0), lost(), id="without a pause"),
    ],
)
def test_what_cannot_be_repeated_is_a_persons(policy: RetryPolicy, failure: Failure) -> None:
    """
    Nothing is repeated blindly or in a busy loop: a person decides, as by default.
    """
    task = ByHand(once(policy))
    task.say()
    task.fail("charge", failure)

    assert (task.state, task.alarms, task.out) == (TaskState.BLOCKED, [], [])
    assert "a person must decide" in task.journal[-1].note


@pytest.mark.parametrize("policy", [FAILS, REPEATS])
def test_an_outage_is_waited_out_whatever_becomes_of_unknown_outcomes(policy: RetryPolicy) -> None:
    """
    Who says nothing about retries keeps the default ones.
    """
    away = Failure(kind=FailureKind.TRANSIENT, type="http_503", message="away", again_s=1.0)
    task = ByHand(once(policy))
    task.say()
    for _ in range(3):
        task.fail("charge", away)
        task.ring("charge")
    task.fail("charge", away)

    assert task.state is TaskState.BLOCKED


def test_a_call_may_have_another_policy_than_its_skill() -> None:
    """
    As for retries.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool("charge", retry=RetryPolicy(on_unknown="ask")))

    task = ByHand(table("pays", Step("begin", begin).start(), retry=FAILS))
    task.say()
    task.fail("charge", unknown())

    assert task.state is TaskState.BLOCKED


def test_a_task_that_failed_so_is_looked_up_when_it_is_recovered() -> None:
    """
    The command is sent again under its id, so the worker asks receipt and probe before anything is performed.
    """
    task = ByHand(once(FAILS))
    task.say()
    task.fail("charge", unknown())
    again = task.recovered()

    assert [one.invocation_id for one in again.task.pending.values()] == ["T/1.1"]
    again.give("charge", 5)
    assert again.said == ["charged 5"]
