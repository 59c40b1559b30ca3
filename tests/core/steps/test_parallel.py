"""Several coroutines of one step at once: each goes on by itself, and the order of results is that of the arguments."""

from typing import Any

import pytest

from refold import CommandError, Ctx, GatePolicy, Status, Transition
from refold.testing import approve, check_laws, permanent, play, reply, transient
from tests.core.byhand import ByHand
from tests.core.small import BOTH, one_step, reason_of


async def two_calls(ctx: Ctx, name: str) -> str:
    first = await ctx.tool(name)
    second = await ctx.tool(f"{name}-then", {"first": first})
    return f"{name}: {first}, {second}"


async def at_most_two(ctx: Ctx) -> Transition:
    await ctx.sleep(1)
    found = await ctx.parallel(*(two_calls(ctx, name) for name in "abc"), limit=2)
    return ctx.complete(" | ".join(found))


def going(task: ByHand) -> list[str]:
    return [pending.command.id for pending in task.task.pending.values()]


@BOTH
def test_each_goes_on_by_itself(cut: bool) -> None:
    """
    Never more are out than the limit says, a free place is taken at once, and the results stand in the order asked.
    """
    task = ByHand(one_step(at_most_two), cut=cut)
    task.say()
    task.ring("sleep")
    seen = [going(task)]
    for id in ("b", "a", "c", "a-then", "c-then", "b-then"):
        if id not in going(task):
            continue
        task.give(id, id.upper())
        seen.append(going(task))
    while going(task):
        task.give(going(task)[0], going(task)[0].upper())

    assert seen[:3] == [["a", "b"], ["a", "c"], ["c", "b-then"]]
    assert all(len(out) <= 2 for out in seen)
    assert task.said == ["a: A, A-THEN | b: B, B-THEN | c: C, C-THEN"]
    assert task.folded() == task.task


def test_one_failing_leaves_the_others_alone() -> None:
    """
    A failure is raised where it is awaited; one that is tried again takes its time, and holds nobody up.
    """

    async def careful(ctx: Ctx, name: str) -> str:
        try:
            return str(await ctx.tool(name))
        except CommandError as error:
            return f"no {name}: {error.failure.message}"

    async def begin(ctx: Ctx) -> Transition:
        return ctx.complete(" | ".join(await ctx.parallel(*(careful(ctx, name) for name in "abc"))))

    story = play(one_step(begin), "go", answers={"a": permanent("gone"), "b": [transient("later"), "B"], "c": "C"})

    assert story.said == ("no a: gone | B | C",)
    assert len(story.asked) == 3


@BOTH
def test_an_uncaught_failure_waits_for_the_others(cut: bool) -> None:
    """
    All coroutines end before the first failure, in their order, is raised.
    """

    async def begin(ctx: Ctx) -> Transition:
        try:
            await ctx.parallel(two_calls(ctx, "a"), two_calls(ctx, "b"))
        except CommandError as error:
            return ctx.complete(f"caught {error.id}")
        return ctx.fail("nothing was raised")

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    task.fail("b")
    task.give("a", 1)
    assert task.status is Status.WORKING
    task.fail("a-then")

    assert task.said == ["caught a-then"]


@BOTH
def test_questions_wait_for_the_others(cut: bool) -> None:
    """
    A gate is asked when nothing else goes on, with the other gates; what is done by then stays done.
    """

    async def gated(ctx: Ctx, name: str) -> str:
        decision = await ctx.approve(f"may {name}", "May I?", policy=GatePolicy(on_denied="continue"))
        return str(await ctx.tool(name)) if decision.approved else f"no {name}"

    async def begin(ctx: Ctx) -> Transition:
        runs = [gated(ctx, "a"), two_calls(ctx, "b"), gated(ctx, "c")]
        return ctx.complete(" | ".join(await ctx.parallel(*runs)))

    story = play(
        one_step(begin),
        "go",
        reply("b", 1),
        reply("b-then", 2),
        approve("may a"),
        approve("may c"),
        [reply("c", "C"), reply("a", "A")],
        cut=cut,
    )

    assert story.said == ("May I?", "May I?", "A | b: 1, 2 | C")
    assert [command.id for command in story.asked] == ["b", "b-then", "may a", "may c", "a", "c"]


@BOTH
def test_they_nest(cut: bool) -> None:
    """
    Within one, others may run, and several calls be gathered; the outer limit holds for all of them.
    """

    async def inner(ctx: Ctx, name: str) -> str:
        one, two = await ctx.gather(ctx.tool(name), ctx.tool(name))
        return f"{one}{two}"

    async def outer(ctx: Ctx, names: str) -> str:
        return "+".join(await ctx.parallel(*(inner(ctx, name) for name in names)))

    async def begin(ctx: Ctx) -> Transition:
        return ctx.complete(" | ".join(await ctx.parallel(outer(ctx, "ab"), outer(ctx, "c"), limit=3)))

    task = ByHand(one_step(begin), cut=cut)
    task.say()
    most = 0
    while going(task):
        most = max(most, len(going(task)))
        task.give(going(task)[-1], going(task)[-1])

    assert most == 3
    assert task.said == ["aa.2+bb.2 | cc.2"]


async def _asyncio_like(ctx: Ctx) -> Transition:
    class Foreign:
        def __await__(self) -> Any:
            yield "a future"

    async def wrong() -> None:
        await Foreign()

    await ctx.parallel(wrong())
    return ctx.complete()


async def _no_coroutine(ctx: Ctx) -> Transition:
    await ctx.parallel(ctx.tool("a"))  # type: ignore[arg-type]  # the mistake
    return ctx.complete()


async def _no_limit(ctx: Ctx) -> Transition:
    await ctx.parallel(limit=0)
    return ctx.complete()


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        pytest.param(_asyncio_like, "awaited 'a future'; await calls of ctx only", id="foreign"),
        pytest.param(_no_coroutine, "give calls of ctx to gather", id="a call"),
        pytest.param(_no_limit, "limit=0 would let nothing go on", id="limit"),
    ],
)
def test_mistakes_are_named(begin: Any, said: str) -> None:
    """
    What cannot run is told at once, with the way out.
    """
    assert said in reason_of(begin)


def test_the_laws_hold() -> None:
    """
    Whatever order things come in, cut anywhere: the same journal.
    """
    check_laws(one_step(at_most_two), max_examples=40)
