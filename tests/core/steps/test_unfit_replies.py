"""A reply that the step which receives it cannot take is refused, and the task goes on waiting."""

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, Field

from refold import Content, Ctx, Status, Step, Transition, skill_of, table
from refold.core.fold.refusal import refusal
from tests.core.byhand import ByHand, at, message
from tests.core.small import BOTH


class Item(BaseModel):
    n: int


def asking(annotation: Any, **options: Any) -> Any:
    """A skill that asks for a value of this type."""

    async def begin(ctx: Ctx) -> Transition:
        return ctx.await_input("answer", "Well?", timeout_s=60)

    async def end(ctx: Ctx, answer: Any) -> Transition:
        return ctx.complete(repr(answer))

    end.__annotations__["answer"] = annotation
    return table("asking", Step("begin", begin).start(), Step("end", end).resume_from("begin"), **options)


@pytest.mark.parametrize(
    ("annotation", "unfit", "fits", "came"),
    [
        (Literal["yes", "no"] | None, "maybe", "yes", "'yes'"),
        (int | None, "many", "5", "5"),
        (Annotated[int, Field(gt=3)] | None, "2", "5", "5"),
        (list[int] | None, "one", [1, 2], "[1, 2]"),
    ],
)
@BOTH
def test_a_reply_that_its_step_cannot_take(annotation: Any, unfit: str, fits: Any, came: str, cut: bool) -> None:
    """
    The person reads why, and answers again. The check of an update says the same before it is taken.
    """
    task = ByHand(asking(annotation), cut=cut)
    task.say()
    entry = task.say(unfit)

    assert entry.refused.startswith("the reply to 'answer' must fit")
    assert refusal(task.skill, task.task, message(unfit), at(9)) == entry.refused
    assert (task.status, task.waiting) == (Status.INPUT_REQUIRED, ["answer"])
    task.feed(message(fits) if isinstance(fits, str) else message().changed({"content": Content.from_data(fits)}))
    assert task.said[-1] == came
    assert task.folded() == task.task


@BOTH
def test_a_reply_for_a_parameter_of_the_skills_input(cut: bool) -> None:
    """
    A corrected order is asked for in the form in which the first one came.
    """

    async def begin(ctx: Ctx, item: Item) -> Transition:
        return ctx.await_input("again", "Another one?")

    async def end(ctx: Ctx, item: Item) -> Transition:
        return ctx.complete(str(item.n))

    skill = table("order", Step("begin", begin).start(), Step("end", end).resume_from("begin"), input=Item)
    task = ByHand(skill, cut=cut)
    task.feed(message().changed({"content": Content.from_data({"n": 1})}))

    assert task.say("hello").refused.startswith("the reply to 'again' must fit Item")
    task.feed(message().changed({"content": Content.from_data({"n": 2})}))
    assert task.said[-1] == "2"


@BOTH
def test_an_early_message_that_the_step_cannot_take_is_left_out(cut: bool) -> None:
    """
    As one that does not fit what a question expects: the question stays open.
    """

    async def begin(ctx: Ctx) -> Transition:
        await ctx.sleep(5)
        return ctx.await_input("answer", "Well?")

    async def end(ctx: Ctx, answer: Literal["yes", "no"]) -> Transition:
        return ctx.complete(answer)

    task = ByHand(table("early", Step("begin", begin).start(), Step("end", end).resume_from("begin")), cut=cut)
    task.say()
    task.say("maybe", early=True)
    entry = task.ring("sleep")

    assert "a message that had come before is left out: the reply to 'answer' must fit" in entry.note
    assert task.waiting == ["answer"]


def test_a_task_of_an_earlier_release_took_it_and_failed() -> None:
    """
    Its journal has no answer of the patch, and comes out as it was.
    """
    task = ByHand(asking(Literal["yes", "no"] | None), patched=lambda _: False)
    task.say()
    task.say("maybe")

    assert task.status is Status.FAILED
    assert task.folded() == task.task


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Fewer(Enum):
    RED = "red"


@pytest.mark.parametrize("expect", [f"{__name__}:Colour", "moved.away:Colour"])
@BOTH
def test_a_reply_that_fits_what_was_asked_and_not_the_step_of_today(expect: str, cut: bool) -> None:
    """
    The code was changed while the question was open: a value is gone from the type, whose class may be elsewhere now.
    """
    task = ByHand(asking(Colour | None), cut=cut)
    task.say()
    open_still = task.task.waits[0]
    asked = open_still.changed({"ask": open_still.ask.changed({"expect": expect})})
    task.skill, task.base = skill_of(asking(Fewer | None)), task.task.changed({"waits": (asked,)})
    task.task, task.journal = task.base, []
    entry = task.say("blue")

    assert entry.refused.startswith("the reply to 'answer' must fit")
    assert refusal(task.skill, task.task, message("blue"), at(9)) == entry.refused
    assert (task.status, task.waiting) == (Status.INPUT_REQUIRED, ["answer"])
    task.say("red")
    assert task.said[-1] == repr(Fewer.RED)
    assert task.folded() == task.task


@pytest.mark.parametrize("asked_of", [None, dict])
def test_a_check_of_the_authors_that_fails_refuses_the_reply(asked_of: Any) -> None:
    """
    Whatever error it raises: a reply comes from outside, and fails no task.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.await_input("size", "?", expect=asked_of)

    def end(ctx: Ctx, size: Annotated[int, BeforeValidator(lambda said: said["size"])]) -> Transition:
        return ctx.complete(f"{size}")

    task = ByHand(table("asks", Step("begin", begin).start(), Step("end", end).resume_from("begin")))
    task.say()
    entry = task.feed(message().changed({"content": Content.from_data({"length": 3})}))

    assert entry.refused.endswith("the check of it failed, KeyError: 'size'")
    assert " at 0x" not in entry.refused  # it is in the journal, which is the same in every process
    assert task.status is Status.INPUT_REQUIRED


def test_a_task_of_an_earlier_release_took_a_reply_that_fits_what_was_asked_and_failed() -> None:
    task = ByHand(asking(Literal["yes", "no"] | None), patched=lambda _: False)
    task.say()
    open_still = task.task.waits[0]
    asked = open_still.changed({"ask": open_still.ask.changed({"expect": f"{__name__}:Colour"})})
    task.task = task.base = task.task.changed({"waits": (asked,)})
    task.journal = []
    task.say("blue")

    assert task.status is Status.FAILED
    assert task.folded() == task.task
