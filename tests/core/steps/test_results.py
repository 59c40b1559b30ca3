"""What an await gives: a value of the type that was asked for, or a failure."""

from typing import Any

import pytest

from refold import (
    CommandError,
    Ctx,
    DecodeError,
    RetryPolicy,
    SkillOutcome,
    Status,
    Step,
    TaskState,
    Transition,
    flow_skill,
    step,
)
from tests.core.byhand import ByHand, busy, result
from tests.core.small import BOTH, Order, Verdict, one_step, price_of, stock_of


@BOTH
def test_results_have_the_types_that_were_asked_for(cut: bool) -> None:
    """
    `expect` for models, the return annotation for tools, any type that pydantic knows.
    """
    got: list[Any] = []

    @flow_skill(id="typed_results")
    class TypedResults:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            got[:] = [
                await ctx.llm("text"),
                await ctx.llm("verdict", expect=Verdict),
                await ctx.llm("list", expect=list[Verdict]),
                await ctx.tool(price_of, item="tea"),
                await ctx.tool(stock_of, {"id": "x", "key": 2}, id="stock"),
                await ctx.tool("unknown", item=1),
                await ctx.activity("act", "act", 1, expect=Verdict),
                await ctx.workflow("flow", "flow"),
                await ctx.skill("child", "hello", "hi"),
            ]
            await ctx.sleep(5)
            return ctx.complete()

    task = ByHand(TypedResults, cut=cut)
    task.say()
    task.give("text", "words")
    task.give("verdict", {"ok": True})
    task.give("list", [{"ok": False}])
    task.give("price_of", {"item": "tea", "amount": 2})
    task.give("stock", 7)
    task.give("unknown", {"raw": 1})
    task.give("act", {"ok": True})
    task.give("flow", [1])
    task.give("child", "hello you")
    task.ring("sleep")

    child = SkillOutcome(task_id="T/9.1", text="hello you")
    expected = [Verdict(ok=True), [Verdict(ok=False)], Order(item="tea", amount=2), 7, {"raw": 1}, Verdict(ok=True)]
    assert got == ["words", *expected, [1], child]
    assert task.status is Status.COMPLETED


@pytest.mark.parametrize(
    ("call", "value", "reason"),
    [
        pytest.param(lambda ctx: ctx.llm("a"), 5, "a: the value does not fit str: ", id="text"),
        pytest.param(lambda ctx: ctx.llm("a", expect=Verdict), "?", "a: the value does not fit Verdict: ", id="expect"),
        pytest.param(
            lambda ctx: ctx.tool(stock_of, {"id": "x"}), "many", "stock_of: the value does not fit int", id="tool"
        ),
    ],
)
@BOTH
def test_a_result_that_does_not_fit_is_a_decode_error(call: Any, value: Any, reason: str, cut: bool) -> None:
    """
    It is raised at the await, names the call and the type, and fails the task for good if nobody catches it.
    """
    caught: list[DecodeError] = []

    async def begin(ctx: Ctx) -> Transition:
        try:
            await call(ctx)
        except DecodeError as error:
            caught.append(error)
            raise
        return ctx.complete()

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    task.feed(result(next(iter(task.task.pending.values())), value))

    assert task.reason.startswith(reason)
    assert caught[0].invocation_id == "T/1.1"
    assert "fatal_error" in task.moves


@BOTH
def test_a_step_goes_on_after_a_failure(cut: bool) -> None:
    """
    A failure is raised at its await; caught, it costs the task nothing.
    """

    async def begin(ctx: Ctx) -> Transition:
        try:
            await ctx.tool("charge")
        except CommandError as error:
            return ctx.goto("later", why=f"{error.id} {error.failure.type}")
        return ctx.fail("it worked")

    async def later(ctx: Ctx, why: str) -> Transition:
        await ctx.llm("apologise")
        return ctx.complete(why)

    task = ByHand(one_step(begin, Step("later", later)), cut=cut)
    task.say()
    task.fail("charge")
    task.give("apologise", "sorry")

    assert (task.status, task.said) == (Status.COMPLETED, ["charge http_403"])


@BOTH
def test_an_uncaught_failure_ends_the_task_with_what_was_said(cut: bool) -> None:
    """
    The failure is the reason, and what the step said on its way out is heard.
    """

    async def begin(ctx: Ctx) -> Transition:
        try:
            await ctx.tool("charge", retry=RetryPolicy(max_retries=0))
        except CommandError:
            ctx.say("The card was declined.")
            raise
        return ctx.complete()

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    task.fail("charge", busy())

    assert (task.reason, task.said) == ("charge: busy (no retry left)", ["The card was declined."])
    assert task.moves == ["start", "transient_error", "max_retries_exceeded"]


@BOTH
def test_gather_waits_for_all_and_raises_the_first_by_argument(cut: bool) -> None:
    """
    The first failure in the order of the arguments is raised when all have come back, whichever failed first.
    """

    async def begin(ctx: Ctx) -> Transition:
        try:
            await ctx.gather(ctx.llm("a"), ctx.llm("b"), ctx.llm("c"))
        except CommandError as error:
            return ctx.complete(f"{error.id} at {ctx.now.second}")
        return ctx.fail("it worked")

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    task.fail("c")
    task.fail("b")
    assert task.state is TaskState.RUNNING
    task.give("a", "fine")

    assert task.said == ["b at 4"]


@BOTH
def test_gather_tells_calls_of_one_id_apart(cut: bool) -> None:
    """
    The second call of a tool gets an id of its own; nothing at all comes back at once.
    """

    async def begin(ctx: Ctx) -> Transition:
        assert await ctx.gather() == ()
        both = await ctx.gather(ctx.tool("search", q="a"), ctx.tool("search", q="b"))
        return ctx.complete(str(both))

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    task.give("search.2", "second")
    task.give("search", "first")

    assert task.said == ["('first', 'second')"]


@BOTH
def test_gather_numbers_past_the_ids_that_are_taken(cut: bool) -> None:
    """
    The author has called one `search.2` already; all three run, and each result comes to its call.
    """

    async def begin(ctx: Ctx) -> Transition:
        calls = [ctx.tool("look", id=id) for id in ("search", "search.2", "search", "search.2")]
        return ctx.complete(str(await ctx.gather(*calls)))

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    for id in ("search.2.2", "search.3", "search.2", "search"):
        task.give(id, id)

    assert task.said == ["('search', 'search.2', 'search.3', 'search.2.2')"]


@BOTH
def test_a_call_that_is_awaited_again_is_another_command(cut: bool) -> None:
    """
    As docs/how-it-works.md says: the value that the first await returned is not returned once more.
    """

    async def begin(ctx: Ctx) -> Transition:
        stock = ctx.tool(stock_of, {"id": "x"}, id="stock")
        return ctx.complete(f"{await stock}, {await stock}")

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    task.give("stock", 7)
    task.give("stock", 6)

    assert task.said == ["7, 6"]
    assert len({one.invocation_id for entry in task.journal for one in entry.commands}) == 2
