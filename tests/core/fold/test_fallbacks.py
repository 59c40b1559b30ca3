"""A model call with several models: which failure asks the next one, what the journal says, and who goes on."""

from __future__ import annotations

from typing import Any

import pytest

from refold import Cmd, Content, Ctx, Failure, FailureKind, RetryPolicy, SkillError, Status, Step, Transition, table
from refold.core.chat import Reply, ToolReturn
from refold.core.fold.wanted import Perform, wanted
from refold.engine.view import view_of
from tests.core.byhand import ByHand, busy, refused

MODELS = ["a:one", "b:two", "c:three"]
BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])
CHAT = pytest.mark.parametrize("chat", [False, True], ids=["llm", "chat"])


def asking(chat: bool = False, *, cut: bool = False, **options: Any) -> ByHand:
    """A task that asks one of three models."""
    options = {"model": MODELS, **options}

    async def begin(ctx: Ctx, content: Content) -> Transition:
        call = ctx.chat if chat else ctx.llm
        answer: Any = await call("ask", "Hello?", **options)
        return ctx.complete(answer.text if chat else answer)

    task = ByHand(table("asks", Step("begin", begin).start()), cut=cut)
    task.say()
    return task


def asked(task: ByHand, id: str = "ask") -> str | None:
    """The model that the command of this id is sent to now."""
    want = next(one for one in wanted(task.task).values() if isinstance(one, Perform) and one.command.id == id)
    command: Any = want.command
    model: str | None = command.frame.model if command.kind == "chat" else command.model
    return model


def known_frame(task: ByHand) -> bool:
    """Whether the open chat is sent with the frame that the history has for its conversation."""
    (want,) = wanted(task.task).values()
    assert isinstance(want, Perform)
    assert want.prior is not None
    return want.prior.framed


def outage() -> Failure:
    return Failure(kind=FailureKind.TRANSIENT, type="http_503", message="busy", again_s=86400)


def broke() -> Failure:
    return Failure(kind=FailureKind.PERMANENT, type="quota_exceeded", message="the quota is used up")


@BOTH
@CHAT
def test_the_next_model_is_asked_at_the_third_failure(chat: bool, cut: bool) -> None:
    """
    The first two are retried; the journal names the model that is asked instead, which is asked at once.
    """
    task = asking(chat, cut=cut)
    for wait_s in (1, 2):
        assert asked(task) == "a:one"
        assert task.fail("ask", busy()).note == f"ask: busy; retry {wait_s} of 3 in {wait_s} s"
        task.ring("ask")
    entry = task.fail("ask", busy())

    assert entry.note == "ask: busy; asks b:two instead"
    assert task.alarms == [(task.task.at - task.base.at).total_seconds()]
    task.ring("ask")
    assert asked(task) == "b:two"
    assert [one.failure for one in view_of(task.task).pending] == ["busy; asks b:two instead"]
    task.give("ask", Reply(text="Yes.") if chat else "Yes.")
    assert (task.said, task.status) == (["Yes."], Status.COMPLETED)
    assert task.folded() == task.task


def test_the_next_model_has_tries_of_its_own() -> None:
    """
    Its waits begin at one second again, and it hands on at its own third failure.
    """
    task = asking()
    notes = []
    for _ in range(6):
        notes.append(task.fail("ask", busy()).note.removeprefix("ask: busy; "))
        task.ring("ask")

    assert notes[3:] == ["retry 1 of 3 in 1 s", "retry 2 of 3 in 2 s", "asks c:three instead"]
    assert asked(task) == "c:three"


@pytest.mark.parametrize(
    ("failure", "then"),
    [
        pytest.param(broke(), "b:two", id="quota"),
        pytest.param(busy(retry_after=31), "b:two", id="long wait"),
        pytest.param(busy(retry_after=30), "a:one", id="short wait"),
        pytest.param(refused(), None, id="refused"),
    ],
)
def test_a_failure_may_ask_the_next_model_at_once(failure: Failure, then: str | None) -> None:
    """
    A quota that is used up, and a long wait; a refused request is final, since no other model is asked another one.
    """
    task = asking()
    task.fail("ask", failure)

    if then is None:
        assert task.status is Status.FAILED
        return
    task.ring("ask")
    assert asked(task) == then


def test_a_policy_says_which_permanent_failures_ask_the_next_model() -> None:
    """
    By their types; a quota is not among them then.
    """
    task = asking(retry=RetryPolicy(fallback_on=("http_403",)))
    task.fail("ask", refused())
    task.ring("ask")
    assert asked(task) == "b:two"

    task.fail("ask", broke())
    assert task.status is Status.FAILED


def test_a_policy_with_fewer_retries_asks_the_next_model_earlier() -> None:
    """
    Without retries, at the first failure; the last model's failure is the call's.
    """
    task = asking(retry=RetryPolicy(max_retries=0))
    for model in MODELS:
        assert asked(task) == model
        task.fail("ask", outage())
        if model != MODELS[-1]:
            task.ring("ask")

    assert task.status is Status.FAILED


@BOTH
def test_in_an_outage_of_all_each_model_is_probed_in_turn(cut: bool) -> None:
    """
    A task with the default policy is blocked, and goes on with whichever answers first.
    """
    task = asking(cut=cut, model=MODELS[:2])
    for _ in range(3 + 4):
        task.fail("ask", outage())
        task.ring("ask")
    probed = []
    for _ in range(3):
        probed.append(asked(task))
        task.fail("ask", broke())
        task.ring("ask")

    assert probed == ["a:one", "b:two", "a:one"]
    task.give("ask", "Back.")
    assert task.said == ["Back."]
    assert task.folded() == task.task


def test_a_used_up_quota_of_the_last_model_does_not_turn_an_outage_into_a_failure() -> None:
    """
    The first model is away for a while: with a fallback the task waits as it does without.
    """
    task = asking(model=MODELS[:2])
    for _ in range(3):
        task.fail("ask", outage())
        task.ring("ask")
    task.fail("ask", broke())

    assert task.state == "blocked"


@CHAT
@pytest.mark.parametrize("models", [MODELS[:1], MODELS[:2]], ids=["one", "two"])
def test_an_outage_of_ten_minutes_fails_no_task(chat: bool, models: list[str]) -> None:
    """
    The task is blocked, asks at growing intervals by itself, and goes on with the first answer.
    """
    task = asking(chat, model=models)
    while (task.task.at - task.base.at).total_seconds() < 600:
        task.fail("ask", outage())
        task.ring("ask")
    assert (task.state, len(task.journal) < 40) == ("blocked", True)
    task.give("ask", Reply(text="Back.") if chat else "Back.")

    assert (task.said, task.status) == (["Back."], Status.COMPLETED)


def conversing(cut: bool) -> ByHand:
    """A task whose conversation goes on after a tool's result, and after another message."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.chat("one", "Hello?", model=MODELS)
        await ctx.chat("two", ToolReturn(id="1", name="find", value="x"), model=MODELS)
        await ctx.chat("three", "And now?", model=MODELS)
        return ctx.complete("Done.")

    task = ByHand(table("converses", Step("begin", begin).start()), cut=cut)
    task.say()
    return task


@BOTH
def test_a_tools_results_go_to_the_model_that_asked_for_them(cut: bool) -> None:
    """
    The next message of the user is for the first model again.
    """
    task = conversing(cut)
    task.fail("one", broke())
    task.ring("one")
    task.give("one", Reply(text="Wait."))
    assert (asked(task, "two"), known_frame(task)) == ("b:two", False)
    task.give("two", Reply(text="Found."))
    assert (asked(task, "three"), known_frame(task)) == ("a:one", True)


@BOTH
@pytest.mark.parametrize(("patched", "model"), [(True, "b:two"), (False, "a:one")], ids=["now", "recorded-before"])
def test_results_of_tools_go_there_with_what_is_said_beside_them(cut: bool, patched: bool, model: str) -> None:
    """
    As a budget tells what is left, or the user writes in the middle of the work.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.chat("one", "Find it.", model=MODELS)
        await ctx.chat("two", [ToolReturn(id="1", name="find", value="x"), "Budget left: 1 usd."], model=MODELS)
        return ctx.complete((await ctx.chat("three", "Thank you.", model=MODELS)).text)

    task = ByHand(table("asks", Step("begin", begin).start()), cut=cut, patched=lambda _: patched)
    task.say()
    task.fail("one", broke())
    task.ring("one")
    task.give("one", Reply(text="call it", model="b:two"))
    assert asked(task, "two") == model

    task.give("two", Reply(text="found", model=model))
    assert asked(task, "three") == "a:one"
    assert task.folded() == task.task


@pytest.mark.parametrize("model", [[], ["a:one", "a:one"], ["a:one", ""], ["a:one", 2], 7], ids=str)
def test_a_list_of_models_is_checked(model: Any) -> None:
    """
    The error names the command, and says what is expected.
    """
    with pytest.raises(SkillError, match=r"command 'ask': model=.* give one, or a list of different ones"):
        Cmd.llm("ask", "Hello?", model=model)


def test_a_list_of_one_is_that_model() -> None:
    """
    The same command as with the name alone.
    """
    assert Cmd.llm("ask", "Hello?", model=["a:one"]) == Cmd.llm("ask", "Hello?", model="a:one")
