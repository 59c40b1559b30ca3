"""`refold cost`, and what tasks cost in `refold show` and `refold list`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from refold import Content, Ctx, InputRejected, Status, TaskState, Transition, flow_skill, step
from refold.cli.costs import cost_of
from refold.core.chat import Reply, Usage, UserSaid
from refold.core.commands import CallChat
from refold.core.fold.journal import Entry
from refold.engine import TaskView
from refold.testing import FakeEngine
from tests.cli.conftest import Shell


@flow_skill(id="part")
class Part:
    """Asks a model once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask."""
        await ctx.chat("think", [content.text])
        return ctx.complete("thought")


@flow_skill(id="whole")
class Whole:
    """Asks a model, and has a part."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask, and have asked."""
        await ctx.chat("think", [content.text])
        await ctx.skill("sub", "part", content)
        return ctx.complete("done")


def reply(model: str, usd: float | None) -> Reply:
    return Reply(text="ok", model=model, usage=Usage(input_tokens=1_000, output_tokens=10, usd=usd))


@pytest.fixture
def costs() -> Shell:
    """Two tasks of Ada's and one of Bob's, each with a part; Bob's model has no known price."""
    dear, odd = reply("openai:gpt-5", 0.25), reply("vllm:our-own", None)

    def answer(asked: CallChat) -> Reply:
        return odd if asked.say[0] == UserSaid(content=Content.from_text("bob")) else dear

    engine = FakeEngine([Whole, Part], answers={"think": answer})
    for owner, task in (("ada", "a1"), ("ada", "a2"), ("bob", "b1")):
        asyncio.run(engine.start("whole", Content.from_text(owner), task_id=task, owner=owner))
    return Shell(engine)


def test_a_task_costs_what_its_calls_cost(costs: Shell) -> None:
    """
    Its own and those of its parts, one a line; the note says that it is an estimate.
    """
    done = costs("cost", "a1")
    lines = done.out.splitlines()

    assert lines[0].split() == ["TIME", "MODEL", "IN", "OUT", "USD", "CALL"]
    assert [line.split()[-2:] for line in lines[1:3]] == [["a1/1.1", "think"], ["a1/2.1/1.1", "think"]]
    assert lines[3].split() == ["total", "2,000", "20", "$0.500000"]
    assert done.err.startswith("an estimate: each call at the price of its day")


@flow_skill(id="both")
class Both:
    """Has a part and a look beside it, and waits for both."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Have asked."""
        await ctx.gather(ctx.skill("sub", "part", content), ctx.tool("look"))
        return ctx.complete("done")


@pytest.mark.parametrize("how", ["recovered", "forked"])
def test_a_part_that_a_new_task_took_over_counts_for_it(how: str) -> None:
    """
    No entry of a recovered or forked task asks for a part that was open in the other task.
    """
    engine = FakeEngine([Both, Part])
    asyncio.run(engine.start("both", Content.from_text("ada"), task_id="c1"))
    if how == "recovered":
        asyncio.run(engine.cancel("c1"))
        new = asyncio.run(engine.recover("c1"))
    else:
        new = asyncio.run(engine.fork("c1", at=1, live=True))
    asyncio.run(engine.reply(f"{new.task_id}/1.1", "think", reply("openai:gpt-5", 0.25)))

    printed = Shell(engine)("cost", new.task_id, "--json")

    assert printed.lines[-1]["total"]["usd"] == 0.25


def test_a_dry_fork_starts_no_part() -> None:
    """
    So nothing is said of one that was open in the other task.
    """
    engine = FakeEngine([Both, Part])
    asyncio.run(engine.start("both", Content.from_text("ada"), task_id="c1"))
    new = asyncio.run(engine.fork("c1", at=1))

    printed = Shell(engine)("cost", new.task_id, "--json")

    assert (printed.exit, printed.err) == (0, Shell(engine)("cost", "c1", "--json").err)
    assert printed.lines[-1]["total"]["calls"] == 0


def test_an_unknown_price_is_said_so(costs: Shell) -> None:
    """
    It is no 0, in a line, in a sum and in JSON.
    """
    done = costs("cost", "b1")
    total = costs("cost", "b1", "--json").lines[-1]["total"]

    assert [line.split()[-3] for line in done.out.splitlines()[1:3]] == ["unknown", "unknown"]
    assert "+ 2 calls of unknown price" in done.out
    assert "no price is known: vllm:our-own" in done.err
    assert (total["usd"], total["unpriced_calls"], total["input_tokens"]) == (None, 2, 2_000)


@pytest.mark.parametrize(
    ("by", "sums"),
    [
        ("owner", {"bob": None, "ada": 1.0}),
        ("skill", {"part": 0.5, "whole": 0.5}),
        ("task", {"a1": 0.25, "a1/2.1": 0.25, "a2": 0.25, "a2/2.1": 0.25, "b1": None, "b1/2.1": None}),
    ],
)
def test_sums(costs: Shell, by: str, sums: dict[str, float | None]) -> None:
    """
    Each call is in one sum, and the sums make the total.
    """
    *lines, last = costs("cost", "--by", by, "--json").lines
    text = costs("cost", "--by", by).out.splitlines()

    assert {line[by]: line["usd"] for line in lines} == sums
    assert last["total"]["usd"] == 1.0
    assert sum(line["calls"] for line in lines) == last["total"]["calls"] == 6
    assert text[0].split() == [by.upper(), "CALLS", "IN", "OUT", "USD"]
    assert text[-1].split() == ["total", "6", "6,000", "60", "$1.000000", "+", "2", "calls", "of", "unknown", "price"]


def test_a_day_is_a_sum(costs: Shell) -> None:
    """
    All calls of a day, in UTC.
    """
    (line, last) = costs("cost", "--by", "day", "--owner", "ada", "--json").lines

    assert (line["usd"], last["total"]["usd"]) == (1.0, 1.0)


def test_show_and_list_say_what_a_task_cost(costs: Shell) -> None:
    """
    Its own calls; the list only if it is asked, since it reads every journal.
    """
    shown = costs("show", "a1")
    listed = costs("list", "--cost", "--skill", "whole").out.splitlines()

    assert "cost        $0.250000 estimated; 1 call, 1,000 tokens in, 10 out" in shown.out
    assert costs("show", "a1", "--json").json["cost"]["usd"] == 0.25
    assert listed[0].split() == ["TASK", "SKILL", "STATUS", "LIFECYCLE", "UPDATED", "COST", "WHAT"]
    assert ["$0.250000" in line for line in listed[1:]].count(True) == 2
    assert "COST" not in costs("list").out


class Unread:
    """A worker whose storage has not what the task has taken: it fails the question, not the task."""

    async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        for entry in list[Entry]():
            yield entry
        raise InputRejected(f"the value of {task_id} is not in the folder")


async def test_a_task_whose_journal_no_worker_can_read_is_shown_without_its_cost(costs: Shell) -> None:
    """
    The worker fails the question, and not the task.
    """
    assert await cost_of(Unread(), await costs.engine.look("a1")) is None


class Away:
    """A worker that does not answer."""

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        raise AssertionError(f"{task_id} is asked for its journal, which takes seconds")


async def test_who_did_not_say_how_a_task_stands_is_not_asked_what_it_cost() -> None:
    """
    `refold show` waited thirteen seconds longer for nothing.
    """
    at = datetime(2026, 1, 1, tzinfo=UTC)
    seen = TaskView(task_id="t", skill="part", status=Status.WORKING, lifecycle=TaskState.RUNNING, updated_at=at)

    assert await cost_of(Away(), seen.model_copy(update={"note": "no worker answers"})) is None
    with pytest.raises(AssertionError, match="t is asked"):
        await cost_of(Away(), seen)


def test_nothing_to_add_up(refold: Shell, tmp_path: Path) -> None:
    """
    A task without model calls costs nothing; what does not exist is an error.
    """
    missing = refold("cost", "nobody")
    file = refold("cost", str(tmp_path / "none.jsonl"))

    assert refold("cost").out.splitlines()[-1].split() == ["total", "0", "0", "0", "$0"]
    assert (missing.exit, file.exit) == (2, 2)
    assert "no task 'nobody'" in missing.err
