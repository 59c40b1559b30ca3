"""A gate that concurrent coroutines have in common: no grant is lost, whichever errors end those that await it."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from refold import CommandError, Ctx, GatePolicy, Transition
from refold.core.authoring.context import NOBODYS, own_shared
from refold.core.commands import AskApproval, Sleep
from tests.core.byhand import ByHand
from tests.core.small import BOTH, one_step
from tests.sweeps import examples

CONTINUES = GatePolicy(on_denied="continue", on_timeout="continue", timeout_s=60)
GRANT = CONTINUES.model_copy(update={"timeout_s": 1e6})


async def granted(ctx: Ctx) -> tuple[str, bool]:
    """The grant's gate, and whether this coroutine is the first one to have it."""
    decision, first = await own_shared(
        ctx, "grant", lambda: ctx.approve("grant", "May I?", policy=GRANT), "refold.step.shared"
    )
    return decision.gate, first


async def asks_and_raises(ctx: Ctx) -> None:
    await ctx.ask("a", "?")
    raise ValueError("a")


async def has_it_later(ctx: Ctx) -> Transition:
    with suppress(ValueError):
        await ctx.parallel(asks_and_raises(ctx), granted(ctx))
    _, first = await granted(ctx)
    return ctx.complete(f"first: {first}")


@BOTH
def test_a_grant_that_nobody_had_is_for_who_comes_next(cut: bool) -> None:
    """
    An error that came with the grant ended the coroutine that waited for it. A person is not asked again.
    """
    task = ByHand(one_step(has_it_later), cut=cut)
    task.say()
    task.decide("grant")
    task.say("an answer", gate=task.gate("a"))

    assert (task.waiting, task.said[-1]) == ([], "first: True")
    assert task.folded() == task.task


@BOTH
def test_a_timeout_that_nobody_had_is_for_nobody(cut: bool) -> None:
    """
    Who comes next asks anew.
    """
    task = ByHand(one_step(has_it_later), cut=cut)
    task.say()
    task.clock("~timeout")
    task.say("an answer", gate=task.gate("a"))
    assert task.waiting == ["grant"]
    task.decide("grant", second=1e6 + 1)

    assert task.said[-1] == "first: True"
    assert task.folded() == task.task


@BOTH
def test_a_task_that_asked_for_the_lost_grant_again_goes_on_as_before(cut: bool) -> None:
    """
    Its second gate stays open, and is decided.
    """
    task = ByHand(one_step(has_it_later), cut=cut, patched=lambda patch: patch != NOBODYS)
    task.say()
    task.decide("grant")
    task.say("an answer", gate=task.gate("a"))
    assert task.waiting == ["grant"]
    task.patched = None
    task.decide("grant")

    assert task.said[-1] == "first: True"
    assert task.folded() == task.task


Tree = str | tuple[str, list[Any]]

LEAVES = ("grant", "grant", "grants", "tool", "sleep", "ask", "gate", "race", "tool, then raise", "ask, then raise")
LIMITS = {"parallel": None, "attempt parallel": None, "one at a time": 1, "attempt one at a time": 1}
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.sampled_from(LEAVES),
    lambda parts: st.tuples(
        st.sampled_from([*LIMITS, "attempt parallel", "in turn"]), st.lists(parts, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


class Walk:
    """Awaits what a tree says; each call but the shared gate has the name of its place.

    Attributes:
        had: The gates whose grants coroutines were the first to have, for each time the step was run or driven again.
    """

    def __init__(self) -> None:
        self.had = defaultdict[Ctx, list[str]](list)

    async def walk(self, ctx: Ctx, tree: Tree, place: str = "at") -> None:
        if isinstance(tree, str):
            await self.call(ctx, tree, place)
            return
        how, trees = tree
        made = (self.walk(ctx, part, f"{place} {number}") for number, part in enumerate(trees))
        with suppress(*((ValueError, CommandError) if "attempt" in how else ())):
            if how in LIMITS:
                await ctx.parallel(*made, limit=LIMITS[how])
            else:
                for part in made:
                    await part

    async def call(self, ctx: Ctx, what: str, place: str) -> None:
        match what:
            case "grant" | "grants":
                for _ in range(2 if what == "grants" else 1):
                    gate, first = await granted(ctx)
                    self.had[ctx] += [gate] * first
                    assert gate in self.had[ctx]
            case "sleep":
                await ctx.sleep(60, id=place)
            case "gate":
                await ctx.approve(place, "?", policy=CONTINUES)
            case "race":
                await ctx.first(ctx.sleep(60, id=f"{place} timer"), ctx.ask(place, "?"))
            case "ask" | "ask, then raise":
                await ctx.ask(place, "?")
            case _:
                await ctx.tool(place)
        if what.endswith("raise"):
            raise ValueError(place)


def happens(task: ByHand, name: str, *, well: bool) -> None:
    """What the task waits for under this name comes back; where it can fail, `well` says whether it does."""
    wait = next((one for one in task.task.waits if one.slot == name), None)
    if wait is not None and not isinstance(wait.ask, AskApproval):
        task.say("an answer", gate=wait.gate)
    elif wait is not None and well:
        task.decide(name)
    elif wait is not None:
        task.clock(f"{wait.gate}~timeout")
    elif isinstance(task.pending(name).command, Sleep):
        task.ring(name)
    elif well:
        task.give(name, "a value")
    else:
        task.fail(name)


def open_gates(task: ByHand) -> Sequence[str]:
    return [wait.gate for wait in task.task.waits if wait.slot.startswith("grant")]


@given(
    how=st.sampled_from(["parallel", "one at a time"]),
    trees=st.lists(TREES, min_size=2, max_size=3),
    data=st.data(),
    cuts=st.booleans(),
)
@settings(max_examples=examples(250), deadline=None)
def test_each_grant_counts_once_and_none_is_asked_for_again(
    how: str, trees: list[Tree], data: st.DataObject, cuts: bool
) -> None:
    """
    However coroutines nest, whichever errors end some of them, and wherever new runs begin: one gate is open at most,
    a grant is given to one coroutine first, and while a grant is left that nobody had, no gate opens.
    """
    walk = Walk()

    async def begin(ctx: Ctx) -> Transition:
        for tree in ((how, trees), "grant"):
            with suppress(ValueError, CommandError):
                await walk.walk(ctx, tree)
        return ctx.complete("done")

    task = ByHand(one_step(begin))
    task.say()
    given_at, before = set[str](), open_gates(task)
    while not task.task.ended:
        task.cut = cuts and data.draw(st.booleans())
        started = [one.command.id for one in task.task.pending.values() if one.started]
        name = data.draw(st.sampled_from([*task.waiting, *started]))
        well = data.draw(st.sampled_from([True, True, False]))
        given_at |= {task.gate(name)} if name == "grant" and well else set()
        happens(task, name, well=well)
        now, had = open_gates(task), {gate for gates in walk.had.values() for gate in gates}
        assert len(now) <= 1
        assert set(now) <= set(before) or given_at <= had
        before = now

    assert all(len(gates) == len(set(gates)) for gates in walk.had.values())
    assert task.said[-1] == "done"
    assert task.folded() == task.task
