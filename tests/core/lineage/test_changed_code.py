"""Recovery and forks with changed code: the new code goes on from the journal, or is refused with a reason."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold import CommandError, Content, Ctx, InputRejected, SkillError, Transition, skill_of
from refold.core.authoring.skill import Live
from refold.core.events import Event
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.lineage.fork import fork
from refold.lineage.recover import recover
from refold.testing import histories
from refold.testing.strategies import Happening, first_of
from tests.core.byhand import ByHand
from tests.core.lineage.recovering import charge, skill, started
from tests.sweeps import examples

CALLS = ["a", "b", "both", "race", "undoable", "sleep", "ask", "approve", "activity", "swallowed", "bug"]


def written(calls: list[str]) -> Any:
    """A skill that makes these calls one after the other."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        for call in calls:
            await made(ctx, call)
        return ctx.complete("done")

    return skill(begin)


async def made(ctx: Ctx, call: str) -> None:
    match call:
        case "both":
            await ctx.gather(ctx.tool("a"), ctx.tool("b"))
        case "race":
            await ctx.first(ctx.tool("a"), ctx.sleep(5))
        case "undoable":
            await ctx.tool(charge, cents=5)
        case "sleep":
            await ctx.sleep(5)
        case "ask":
            await ctx.ask("why", "Why?")
        case "approve":
            await ctx.approve("sure", "Sure?")
        case "activity":
            await ctx.activity("names", "names")
        case "swallowed":
            try:
                await ctx.tool("a")
            except CommandError:
                await ctx.tool("b")
        case "bug":
            raise KeyError("bug")
        case _:
            await ctx.tool(call)


async def books(ctx: Ctx, content: Content) -> Transition:
    await ctx.tool("book")
    raise KeyError("bug")


async def approves_first(ctx: Ctx, content: Content) -> Transition:
    await ctx.approve("sure", "Book it?")
    await ctx.tool("book")
    return ctx.complete("booked")


async def asks_why(ctx: Ctx, content: Content) -> Transition:
    await ctx.ask("why", "Why?")
    return ctx.complete("booked")


@pytest.mark.parametrize("code", [approves_first, asks_why])
def test_code_that_no_longer_asks_for_the_result_that_met_a_bug_is_refused(code: Any) -> None:
    """
    The result would be lost, and its command's id used for another; recovery says so.
    """
    task = started(books)
    task.give("book", 1)

    with pytest.raises(InputRejected, match=r"does not do what the journal records: .*'book' as T/1\.1"):
        task.recovered(author=skill(code))


def test_an_answer_that_the_changed_code_refuses_is_named() -> None:
    """
    With its entry, and why it is refused.
    """

    def asking(kind: Any) -> Any:
        async def begin(ctx: Ctx, content: Content) -> Transition:
            await ctx.ask("age", "How old?", expect=kind)
            await ctx.tool("book")
            await ctx.ask("why", "Why?")
            raise KeyError("bug")

        return skill(begin)

    task = ByHand(asking(None))
    task.say()
    task.say("seven")
    task.give("book", 1)
    task.say("because")

    with pytest.raises(InputRejected, match="records: it refuses entry 2: the reply to 'age' must fit int"):
        task.recovered(author=asking(int))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_code_recovers_and_forks_or_is_refused(data: st.DataObject) -> None:
    """
    Whatever was changed: the new task's workflow handles the two errors of a refusal, and is stuck after any other.
    """
    calls = st.lists(st.sampled_from(CALLS), max_size=3)
    old, new = skill_of(written([*data.draw(calls), "bug"])), skill_of(written(data.draw(calls)))
    base = first_of(old)
    history: list[Happening] = data.draw(histories(old, max_events=8))
    task, entries, live = base, list[Entry](), Live()
    for happening in history:
        task, entry = advance(old, task, happening.event, happening.at, live=live)
        entries.append(entry)

    for seq in (None, data.draw(st.integers(1, len(entries)))):
        try:
            made: tuple[Snapshot, Event] = (
                recover(new, base, entries, "T2", task.at)
                if seq is None
                else fork(new, base, entries, "T2", task.at, seq=seq)
            )
        except (InputRejected, SkillError):
            continue
        _, entry = advance(new, *made, task.at)
        assert not entry.refused
