"""Where a task stands, in a few lines."""

from __future__ import annotations

from refold import Content, Ctx, Transition, flow_skill, step
from refold.summary import context_summary
from refold.testing import Played, permanent, play, reply


@flow_skill(id="trip")
class Trip:
    """Books what it can, and asks."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Find, try, ask, book."""
        await ctx.tool("find", id="find")
        try:
            await ctx.tool("hold", id="hold")
        except Exception as error:  # noqa: BLE001 - whatever it is, a person is asked
            await ctx.ask("train", f"No seat held ({error}). Take the train?")
        return ctx.complete(await ctx.tool("book", id="book"))


def told(*script: object) -> str:
    story: Played = play(Trip, "SECRET plans", *script, unfinished=True)  # type: ignore[arg-type]
    return context_summary("t1", story.entries)


def test_a_task_that_comes_back_is_told_in_lines() -> None:
    """
    What is done, with its result, and what it waits for; not what was said.
    """
    found, failed = reply("find", {"seats": [1, 2]}), reply("hold", permanent("full"))

    assert told(found) == 'Task t1 is running.\n1. tool find: done: {"seats":[1,2]}\nUnder way: tool hold'
    assert told(found, failed).splitlines()[0] == "Task t1 is paused."
    assert told(found, failed).splitlines()[2].startswith("2. tool hold: failed: ")
    assert told(found, failed).splitlines()[3].startswith("Waits for train: No seat held")
    assert "SECRET" not in told(found, failed)


def test_it_is_the_same_each_time_and_short() -> None:
    """
    A long result is cut; without results there is none.
    """
    long = play(Trip, "go", reply("find", "x" * 5000), unfinished=True)

    assert context_summary("t1", long.entries) == context_summary("t1", long.entries)
    assert len(context_summary("t1", long.entries)) < 400
    assert context_summary("t1", long.entries, result_chars=0).splitlines()[1] == "1. tool find: done"


def test_an_ended_task_waits_for_nothing() -> None:
    """
    Everything that has an outcome is told.
    """
    ended = told(reply("find", 1), reply("hold", "ok"), reply("book", "booked"))

    assert ended.splitlines()[0] == "Task t1 is done."
    assert ended.splitlines()[-1] == '3. tool book: done: "booked"'
