"""Driving a step again, from its record and receipts, changes nothing; changed code is found out."""

import gc
import sys
from datetime import datetime
from typing import Any

import pytest

from refold import (
    Artifact,
    Content,
    Ctx,
    Status,
    Step,
    Transition,
    flow_skill,
    step,
    table,
)
from refold.export.differs import refolded
from refold.lineage.fork import fork
from tests.core.byhand import ByHand, at
from tests.core.lineage.recovering import charge
from tests.core.small import BOTH, one_step, price_of


@flow_skill(id="writes")
class Writes:
    """Says something before and after each await."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        ctx.say("starting")
        ctx.status("drafting")
        began = ctx.now
        heard = len(ctx.messages)
        draft = await ctx.llm("draft", "Draft.", f"{content.text}, {heard} heard")
        ctx.say(f"drafted {draft}")
        reply = await ctx.ask("more", "More?")
        seconds, now_heard = (ctx.now - began).total_seconds(), len(ctx.messages)
        final = await ctx.llm("final", "Finish.", f"{draft} {reply.text} {seconds} {heard} {now_heard}")
        ctx.hand_over(Artifact.from_text("final", final))
        return ctx.complete("done")


@BOTH
def test_driving_a_step_again_changes_nothing(cut: bool) -> None:
    """
    Cut through JSON at every event, a step asks for the same, says nothing twice, and sees the time and the messages
    that it saw before.
    """
    task = ByHand(Writes, cut=cut)
    task.say("tides")
    task.give("draft", "D")
    task.say("yes")
    command = task.asked("final")
    task.give("final", "F")

    assert command.input == Content.from_text("D yes 2.0 1 5")
    assert task.said == ["starting", "drafted D", "More?", "done"]
    assert (task.status, task.task.progress, task.task.artifacts[0].text) == (Status.COMPLETED, "drafting", "F")
    assert task.folded() == task.task


def test_the_time_within_a_step_is_that_of_the_event_it_goes_on_with() -> None:
    """
    `ctx.now` moves with each await, and a step that is driven again reads the old times again.
    """
    times: list[list[datetime]] = []

    async def begin(ctx: Ctx) -> Transition:
        seen = [ctx.now]
        times.append(seen)
        await ctx.llm("a")
        seen.append(ctx.now)
        await ctx.llm("b")
        seen.append(ctx.now)
        return ctx.complete()

    task = ByHand(one_step(begin), cut=True)
    task.say()
    task.give("a", "")
    task.give("b", "")

    assert times == [[at(1)], [at(1), at(2)], [at(1), at(2), at(3)]]


def changing(steps: list[Any], *more: Step) -> Any:
    """A skill whose start step is taken from a list: new code under a running task."""

    async def begin(ctx: Ctx) -> Transition:
        return await steps[0](ctx)  # type: ignore[no-any-return]

    return one_step(begin, *more)


async def asks_a(ctx: Ctx) -> Transition:
    await ctx.llm("a", "Prompt one.")
    await ctx.llm("b")
    return ctx.complete()


async def asks_otherwise(ctx: Ctx) -> Transition:
    await ctx.llm("a", "Prompt two.")
    return ctx.complete()


async def calls_a_tool(ctx: Ctx) -> Transition:
    await ctx.tool(price_of, item="tea")
    return ctx.complete()


async def ends_at_once(ctx: Ctx) -> Transition:
    return ctx.complete()


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        pytest.param(asks_otherwise, "llm:a:", id="other-prompt"),
        pytest.param(calls_a_tool, "tool:price_of:", id="other-command"),
        pytest.param(ends_at_once, "nothing more: it ends", id="ends-early"),
    ],
)
def test_changed_code_under_a_running_task_is_named(changed: Any, asked: str) -> None:
    """
    A step that asks for another command than before stops the task, names both commands, and starts nothing.
    """
    code = [asks_a]
    task = ByHand(changing(code), cut=True)
    task.say()
    code[0] = changed

    entry = task.give("a", "x")

    assert task.reason.startswith(f"step 'begin' asked for {asked}")
    assert "where the journal holds llm:a:" in task.reason
    assert "put the new path behind `if ctx.patched(...)`" in task.reason
    assert entry.commands == ()


async def asks_in_the_end(ctx: Ctx) -> Transition:
    try:
        await ctx.llm("a", "Prompt two.")
    finally:
        await ctx.tool(price_of, item="tea")
    return ctx.complete()


async def asks_in_the_end_of_a_branch(ctx: Ctx) -> Transition:
    await ctx.parallel(asks_in_the_end(ctx))
    return ctx.complete()


@pytest.mark.parametrize("changed", [asks_in_the_end, asks_in_the_end_of_a_branch])
def test_a_step_that_awaits_as_it_is_closed_is_named(changed: Any) -> None:
    """
    A `finally` that awaits does not hide that the code changed.
    """
    code = [asks_a]
    task = ByHand(changing(code), cut=True)
    task.say()
    code[0] = changed

    task.give("a", "x")

    assert task.reason.startswith("step 'begin' asked for llm:a:")


@pytest.mark.parametrize("end", ["canceled", "cut", "collected"])
def test_a_step_that_awaits_as_it_is_closed_is_dropped_in_silence(end: str) -> None:
    """
    Python reports nothing on stderr, whether the task ends, its cache is dropped or the collector finds both.
    """
    unraised: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraised.append
    try:
        task = ByHand(one_step(asks_in_the_end), cut=end == "cut")
        task.say()
        task.give("a", "x")
        if end == "collected":
            task.live.decoded = (None, task.live)
        else:
            task.cancel()
        del task
        gc.collect()
    finally:
        sys.unraisablehook = hook

    assert unraised == []


def test_a_step_that_was_taken_away_is_named() -> None:
    """
    A task that is within a step, before one, or at a question says which step its code lacks.
    """

    async def begin(ctx: Ctx) -> Transition:
        await ctx.llm("a")
        return ctx.complete()

    task = ByHand(one_step(begin))
    task.say()
    task.skill = table("one_step", Step("start", begin).start())
    task.live.run = None
    task.give("a", "x")

    assert task.reason.startswith("the task is at step 'begin', which its skill has no more; the steps are: start;")


def test_a_parameter_that_was_taken_away_is_named() -> None:
    """
    A step that is driven again needs the parameters that it was entered with.
    """

    async def old(ctx: Ctx, words: list[str]) -> Transition:
        await ctx.llm("a")
        return ctx.complete()

    async def new(ctx: Ctx, sentence: list[str]) -> Transition:
        await ctx.llm("a")
        return ctx.complete()

    task = ByHand(one_step(old), cut=True)
    task.say()
    task.skill = one_step(new)
    task.give("a", "x")

    assert task.reason.startswith("step 'begin' was entered with words, and takes sentence now; keep its parameters")


def patched_skill(answers: list[bool]) -> Any:
    async def begin(ctx: Ctx) -> Transition:
        answers.append(ctx.patched("shorter"))
        await ctx.llm("a")
        answers.append(ctx.patched("shorter"))
        return ctx.complete()

    return one_step(begin)


@pytest.mark.parametrize("id", [None, b"shorter", "refold.races"])
def test_a_patch_that_is_no_text_or_is_named_as_refolds_own_fails_the_task(id: Any) -> None:
    """
    The task's answers of refold's own patches stand beside those of the skill, so a skill cannot ask for one of them.
    """

    async def begin(ctx: Ctx) -> Transition:
        return ctx.complete(str(ctx.patched(id)))

    task = ByHand(one_step(begin))
    entry = task.say()

    assert "ctx.patched takes a text that does not begin with 'refold.'; it got" in task.reason
    assert entry.patches == {}


@pytest.mark.parametrize("answer", [True, False])
@BOTH
def test_a_patch_is_asked_once_and_kept(answer: bool, cut: bool) -> None:
    """
    The first answer is in the entry that asked and in every snapshot after it; nobody is asked again.
    """
    answers: list[bool] = []
    asked: list[str] = []

    def ask(id: str) -> bool:
        asked.append(id)
        return answer

    task = ByHand(patched_skill(answers), cut=cut, patched=ask)
    first = task.say()
    second = task.give("a", "x")

    assert set(answers) == {answer}
    assert asked == ["shorter"]
    assert (first.patches, second.patches, task.task.patches) == ({"shorter": answer}, {}, {"shorter": answer})
    assert task.folded() == task.task


async def unpatched(ctx: Ctx) -> Transition:
    await ctx.llm("a", "Old prompt.")
    await ctx.llm("b", "Old prompt.")
    await ctx.llm("c", "Old prompt.")
    return ctx.complete()


async def patched(ctx: Ctx) -> Transition:
    prompt = "New prompt." if ctx.patched("prompt") else "Old prompt."
    await ctx.llm("a", prompt)
    await ctx.llm("b", prompt)
    await ctx.llm("c", prompt)
    return ctx.complete()


def test_a_task_that_passed_a_patch_with_old_code_takes_the_old_path() -> None:
    """
    A step that is driven again through what it did before the change goes the old way to its end; a new task goes
    the new way. The journal folds to the same with the code of either day.
    """
    code = [unpatched]
    task = ByHand(changing(code), cut=True)
    task.say()
    code[0] = patched
    entry = task.give("a", "x")
    assert (task.reason, entry.patches) == ("", {"prompt": False})
    task.give("b", "x")
    assert task.asked("c").prompt == "Old prompt."
    assert task.folded().state == task.task.state

    new = ByHand(changing(code), cut=True)
    new.say()
    assert new.asked("a").prompt == "New prompt."


async def asks_in_the_first_step(ctx: Ctx) -> Transition:
    ctx.patched("shop")
    await ctx.llm("a")
    return ctx.goto("then")


async def asks_no_more(ctx: Ctx) -> Transition:
    await ctx.llm("a")
    return ctx.goto("then")


async def asks_in_the_second_step(ctx: Ctx) -> Transition:
    await ctx.tool("new" if ctx.patched("shop") else "old")
    await ctx.tool("last")
    return ctx.complete()


def asks_twice(code: list[Any]) -> ByHand:
    """A task of which the first step asked for a patch, as the second does; each has asked for a command."""
    task = ByHand(changing(code, Step("then", asks_in_the_second_step)), cut=True)
    task.say()
    task.give("a", "x")
    return task


def test_an_answer_stays_known_where_todays_code_asks_later() -> None:
    """
    The question is taken out of the first step: the journal, and the states of an export, are what the task did.
    """
    code = [asks_in_the_first_step]
    task = asks_twice(code)
    code[0] = asks_no_more

    assert task.out == ["new"]
    assert task.folded() == task.task
    assert [*refolded(task.skill, task.base, task.journal)][-1].state == task.task.state


@pytest.mark.parametrize("earlier", [False, True])
def test_a_task_made_from_one_that_asked_earlier_goes_the_same_way(earlier: bool) -> None:
    """
    A fork and a recovered task perform what the other task performs; those of an earlier release stay as they were.
    """
    code = [asks_in_the_first_step]
    task = asks_twice(code)
    code[0] = asks_no_more

    branch, _ = fork(task.skill, task.base, task.journal, "F", task.task.at, seq=2, patched=lambda _: not earlier)

    assert [one.command.id for one in branch.pending.values()] == ["old" if earlier else "new"]
    assert branch.patches == ({} if earlier else {"shop": True})
    if not earlier:
        task.fail("new")
        assert task.recovered().out == ["new"]


def test_an_answer_stays_known_where_the_past_is_folded_with_new_outcomes() -> None:
    """
    A recovered task folds its past once more when a compensated effect has been performed again.
    """

    async def pays(ctx: Ctx) -> Transition:
        await ctx.tool(charge, cents=5)
        return ctx.goto("then")

    async def asks_and_pays(ctx: Ctx) -> Transition:
        ctx.patched("shop")
        return await pays(ctx)

    code = [asks_and_pays]
    task = ByHand(changing(code, Step("then", asks_in_the_second_step)))
    task.say()
    task.give("charge", 1)
    task.give("new", "x")
    task.fail("last")
    task.give("undo charge")
    code[0] = pays
    new = task.recovered()
    new.give("charge", 2)

    assert (new.out, new.reason, new.journal[-1].note) == (["last"], "", "")


def test_a_long_step_stays_as_fast() -> None:
    """
    Folding a step of four hundred awaits drives it once, not once for each.
    """
    driven: list[int] = []

    async def begin(ctx: Ctx) -> Transition:
        driven.append(1)
        for n in range(400):
            await ctx.llm(f"a{n}")
        return ctx.complete()

    task = ByHand(one_step(begin))
    task.say()
    for n in range(400):
        task.give(f"a{n}", "x")
    assert task.folded() == task.task

    assert len(driven) == 2
