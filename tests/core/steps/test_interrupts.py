"""Messages to a task at work: a step that declares `on_interrupt` is left for the step that receives the message."""

from typing import Any

import pytest

from refold import (
    Content,
    Ctx,
    DefinitionError,
    SkillOutcome,
    Status,
    Step,
    TaskState,
    Transition,
    UserMessage,
    table,
    tool,
)
from refold.core.fold.wanted import wanted
from refold.testing import check_laws
from tests.core.byhand import ByHand, busy, result
from tests.sweeps import examples

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


async def begin(ctx: Ctx, content: Content) -> Transition:
    return ctx.goto("work", topic=content.text)


async def work(ctx: Ctx, topic: str) -> Transition:
    paid = await ctx.tool("pay")
    await ctx.sleep(60, id="rest")
    return ctx.complete(f"{topic}: {paid} and {await ctx.llm('write', 'Write.', topic)}")


async def steer(ctx: Ctx, content: Content, topic: str, pay: str = "nothing") -> Transition:
    ctx.say(f"Left {topic}, with {pay} paid.")
    return ctx.goto("finish", topic=f"{topic}, {content.text}")


async def finish(ctx: Ctx, topic: str) -> Transition:
    return ctx.complete(f"{topic}: {await ctx.llm('write', 'Write.', topic)}")


def skill() -> Any:
    return table(
        "steered",
        Step("begin", begin).start(),
        Step("work", work).on_interrupt("steer"),
        Step("steer", steer),
        Step("finish", finish).on_interrupt("steer"),
    )


def begun(cut: bool, author: Any = None) -> ByHand:
    task = ByHand(author or skill(), cut=cut)
    task.say("rent")
    return task


@BOTH
def test_a_message_interrupts_what_can_be_taken_back(cut: bool) -> None:
    """
    The sleep is not wanted any more; the step that meets the message has arguments and results by their names.
    """
    task = begun(cut)
    task.give("pay", "10")
    rest = task.pending("rest")

    entry = task.say("and food", early="interrupt")

    assert (task.alarms, task.out, task.task.early) == ([], ["write"], ())
    assert task.said == ["Left rent, with 10 paid."]
    assert entry.note == "a message interrupts the task; step 'work' is left; not wanted any more: rest"
    assert "waits for an outcome" in task.feed(result(rest, None)).refused
    task.give("write", "done")
    assert task.said[-1] == "rent, and food: done"
    assert task.folded() == task.task


@BOTH
def test_results_have_the_names_of_what_was_called(cut: bool) -> None:
    """
    A part's is that of its skill, whatever the command's id is; a model's answer has the id alone.
    """

    async def read(ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(ctx.skill("first", "reader", "x"), ctx.activity("second", "scan"), ctx.llm("third", "Read."))
        await ctx.sleep(60, id="rest")
        return ctx.complete()

    async def tell(
        ctx: Ctx, content: Content, reader: SkillOutcome | None = None, scan: str = "", third: str = ""
    ) -> Transition:
        return ctx.complete(f"{reader.text if reader else ''}, {scan}, {third}")

    task = begun(cut, table("reads", Step("read", read).start().on_interrupt("tell"), Step("tell", tell)))
    for id, value in (("first", "one"), ("second", "two"), ("third", "three")):
        task.give(id, value)

    task.say("now", early="interrupt")

    assert task.said == ["one, two, three"]


@BOTH
def test_an_answer_is_handed_on_as_its_value(cut: bool) -> None:
    """
    The step that receives the message takes the answer to a question as a value of the type asked for, or as text.
    """

    async def ask(ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(ctx.ask("size", "How long?", expect=int), ctx.ask("tone", "Which tone?"))
        await ctx.sleep(60, id="rest")
        return ctx.complete()

    async def tell(ctx: Ctx, content: Content, size: int = 0, tone: str = "") -> Transition:
        return ctx.complete(f"{size + 1}, {tone}")

    task = begun(cut, table("asks", Step("ask", ask).start().on_interrupt("tell"), Step("tell", tell)))
    task.feed(UserMessage(content=Content.from_data(3), slot="size"))
    task.say("warm", slot="tone")

    task.say("now", early="interrupt")

    assert task.said[-1] == "4, warm"


@BOTH
def test_what_has_no_result_leaves_a_default_as_it_is(cut: bool) -> None:
    """
    A sleep that is over and a gate that was passed hand nothing on, also to a parameter of their name.
    """

    async def waits(ctx: Ctx, content: Content) -> Transition:
        await ctx.sleep(60, id="rest")
        await ctx.approve("sure", "Sure?")
        return ctx.complete(await ctx.llm("write", "Write.", "it"))

    async def met(ctx: Ctx, content: Content, rest: str = "none", sure: str = "not asked") -> Transition:
        return ctx.complete(f"{rest}, {sure}")

    task = begun(cut, table("waits", Step("waits", waits).start().on_interrupt("met"), Step("met", met)))
    task.give("rest")
    task.decide("sure")
    task.say("wait", early="interrupt")

    assert task.said[-1] == "none, not asked"


@BOTH
def test_the_newest_result_of_a_name_is_handed_on(cut: bool) -> None:
    """
    A call that has no result yet does not hide the result that an earlier call of its name has had.
    """

    async def improve(ctx: Ctx, content: Content) -> Transition:
        draft = content.text
        for _ in range(3):
            draft = await ctx.llm("draft", "Better.", draft)
        return ctx.complete(draft)

    async def tell(ctx: Ctx, content: Content, draft: str = "nothing") -> Transition:
        return ctx.complete(draft)

    task = begun(cut, table("improves", Step("improve", improve).start().on_interrupt("tell"), Step("tell", tell)))
    task.give("draft", "one")
    task.give("draft", "two")

    task.say("now", early="interrupt")

    assert task.said == ["two"]


@BOTH
def test_an_effect_is_finished_first(cut: bool) -> None:
    """
    While a tool is called the message waits; what the step then asks for does not begin.
    """
    task = begun(cut)

    task.say("and food", early="interrupt")
    assert (task.out, len(task.task.early)) == (["pay"], 1)
    entry = task.give("pay", "10")

    assert [one.command.id for one in entry.commands] == ["rest", "write"]
    assert (task.alarms, task.out) == ([], ["write"])
    assert task.said == ["Left rent, with 10 paid."]
    assert task.folded() == task.task


@BOTH
def test_a_call_that_is_to_be_tried_again_is_finished_first(cut: bool) -> None:
    """
    A task that waits for a retry is not interrupted before the retry.
    """
    task = begun(cut)
    task.fail("pay", busy())

    task.say("and food", early="interrupt")

    assert (task.state, len(task.task.early)) == (TaskState.RETRYING, 1)
    task.ring("pay")
    task.give("pay", "10")
    assert task.said == ["Left rent, with 10 paid."]


@BOTH
def test_a_model_call_that_is_to_be_tried_again_ends_with_the_retry(cut: bool) -> None:
    """
    It has no effect, but a task in a backoff is not interrupted before it runs again.
    """

    async def read(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.llm("read", "Read."))

    async def tell(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(f"Not read: {content.text}.")

    task = begun(cut, table("reads", Step("read", read).start().on_interrupt("tell"), Step("tell", tell)))
    task.fail("read", busy())
    task.say("stop", early="interrupt")
    assert (task.state, len(task.task.early)) == (TaskState.RETRYING, 1)

    task.ring("read")

    assert task.said == ["Not read: stop."]


@tool(effect="idempotent")
def give_back(result: str) -> None:
    """Undo a charge."""


@tool(effect="compensate", undo=give_back)
def charge() -> str:
    """Take the rent."""
    return "50"


@BOTH
def test_no_step_is_interrupted_while_an_effect_is_performed_again(cut: bool) -> None:
    """
    In a recovered task the skill goes on once what was compensated has been performed again.
    """

    async def book(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(charge)
        return ctx.complete(await ctx.llm("report", "Report."))

    async def tell(ctx: Ctx, content: Content, charge: str = "nothing") -> Transition:
        return ctx.complete(f"Charged {charge}; {content.text}.")

    task = begun(cut, table("books", Step("book", book).start().on_interrupt("tell"), Step("tell", tell)))
    task.give("charge", "50")
    task.fail("report")
    task.give("undo charge")
    again = task.recovered()
    assert again.out == ["charge"]

    again.say("stop", early="interrupt")
    assert (again.out, len(again.task.early)) == (["charge"], 1)
    again.give("charge", "51")

    assert again.said == ["Charged 51; stop."]


@BOTH
def test_each_of_several_messages_is_met(cut: bool) -> None:
    """
    One after the other, in the order in which they came.
    """
    task = begun(cut)
    for word in ("one", "two", "three"):
        task.say(word, early="interrupt")

    task.give("pay", "10")
    task.give("write", "done")

    assert task.said[-1] == "rent, one, two, three: done"
    assert task.folded() == task.task


@BOTH
def test_as_many_messages_as_a_task_holds_are_no_endless_loop(cut: bool) -> None:
    """
    They cause more gotos than one event may cause otherwise.
    """

    async def slowly(ctx: Ctx, content: Content, topic: str) -> Transition:
        return ctx.goto("between", topic=f"{topic}, {content.text}")

    async def between(ctx: Ctx, topic: str) -> Transition:
        return ctx.goto("finish", topic=topic)

    task = begun(cut, table(
        "patient",
        Step("begin", begin).start(),
        Step("work", work).on_interrupt("slowly"),
        Step("slowly", slowly),
        Step("between", between),
        Step("finish", finish).on_interrupt("slowly"),
    ))  # fmt: skip
    for number in range(100):
        task.say(str(number), early="interrupt")

    task.give("pay", "10")

    assert (task.state, task.task.early) == (TaskState.RUNNING, ())


@BOTH
def test_a_message_is_met_before_the_next_step(cut: bool) -> None:
    """
    A step without `on_interrupt` goes on to its end; the step after it is not entered.
    """

    async def look(ctx: Ctx, content: Content) -> Transition:
        found = await ctx.llm("look", "Look.")
        return ctx.goto("end", topic=found)

    async def end(ctx: Ctx, topic: str) -> Transition:
        return ctx.complete(topic)

    task = begun(cut, table(
        "met",
        Step("look", look).start(),
        Step("end", end).on_interrupt("steer"),
        Step("steer", steer),
        Step("finish", finish),
    ))  # fmt: skip
    task.say("and food", early="interrupt")
    assert task.out == ["look"]

    task.give("look", "rent")

    assert (task.said, task.out) == (["Left rent, with nothing paid."], ["write"])


@BOTH
def test_a_message_that_may_wait_interrupts_nothing(cut: bool) -> None:
    """
    It waits for a question; so does one that names a question.
    """
    task = begun(cut)
    task.give("pay", "10")

    task.say("and food", early=True)
    task.say("and food", early="interrupt", slot="what")

    assert (task.alarms, len(task.task.early)) == ([62.0], 2)


@BOTH
def test_a_question_is_answered_instead(cut: bool) -> None:
    """
    A message to a task that asks is an answer, whatever else it might be.
    """

    async def ask(ctx: Ctx, content: Content) -> Transition:
        index, answer = await ctx.first(ctx.ask("size", "Which size?"), ctx.sleep(60, id="rest"))
        return ctx.complete(answer.text if index == 0 else "nobody")

    author = table("asks", Step("ask", ask).start().on_interrupt("ask"))
    task = begun(cut, author)

    task.say("large", early="interrupt")

    assert (task.status, task.said[-1]) == (Status.COMPLETED, "large")


@BOTH
def test_a_step_may_meet_its_own_messages(cut: bool) -> None:
    """
    It begins again, with the new message; the calls of all its branches are withdrawn.
    """

    async def draft(ctx: Ctx, content: Content) -> Transition:
        async def one(id: str) -> str:
            return str(await ctx.llm(id, "Write.", content))

        return ctx.complete(", ".join(await ctx.parallel(one("a"), one("b"))))

    task = begun(cut, table("again", Step("draft", draft).start().on_interrupt("draft")))
    task.give("a", "old")

    task.say("better", early="interrupt")

    assert task.out == ["a", "b"]
    task.give("a", "new")
    task.give("b", "new")
    assert task.said[-1] == "new, new"
    assert task.folded() == task.task


@BOTH
def test_a_task_without_such_steps_holds_the_message(cut: bool) -> None:
    """
    As with `early=True`: until it asks.
    """

    async def rest(ctx: Ctx, content: Content) -> Transition:
        await ctx.sleep(60, id="rest")
        return ctx.complete((await ctx.ask("more", "More?")).text)

    task = begun(cut, table("holds", Step("rest", rest).start()))
    task.say("bread", early="interrupt")
    assert task.alarms == [61.0]

    task.ring("rest")

    assert task.said[-1] == "bread"


def test_a_task_that_a_message_broke_is_recovered_by_it() -> None:
    """
    Corrected code meets the same message, and nothing is done twice.
    """
    works: list[bool] = []

    async def meet(ctx: Ctx, content: Content, topic: str, pay: str = "nothing") -> Transition:
        if not works:
            raise ValueError("a bug")
        return await steer(ctx, content, topic, pay)

    author = table(
        "mended",
        Step("begin", begin).start(),
        Step("work", work).on_interrupt("meet"),
        Step("meet", meet),
        Step("finish", finish),
    )
    task = begun(False, author)
    task.give("pay", "10")
    task.say("and food", early="interrupt")
    assert task.status is Status.FAILED
    works.append(True)

    again = task.recovered()

    assert (again.said[-1], again.out, again.alarms) == ("Left rent, with 10 paid.", ["write"], [])


@BOTH
@pytest.mark.parametrize("entry", range(6))
def test_a_message_at_every_entry(entry: int, cut: bool) -> None:
    """
    Wherever it comes, it is met or refused, the effect takes place once, and the task ends.
    """
    task = ByHand(skill(), cut=cut)
    paid = 0
    taken = False
    for number in range(12):
        if number == entry + 1:
            taken = not task.say("and food", early="interrupt").refused
        if task.task.ended:
            break
        if task.state is TaskState.PLANNED:
            task.say("rent")
        elif task.alarms:
            task.ring("rest")
        elif "pay" in task.out:
            paid += 1
            task.give("pay", "10")
        else:
            task.give("write", "done")

    assert (task.status, paid) == (Status.COMPLETED, 1)
    assert task.said[-1] == ("rent, and food: done" if taken else "rent: 10 and done")
    assert task.folded() == task.task
    assert not wanted(task.task)


def test_laws() -> None:
    """
    A skill that is interrupted keeps the laws, at every entry.
    """
    check_laws(skill(), max_examples=examples(60))


# --- mistakes


async def deaf(ctx: Ctx, topic: str) -> Transition:
    return ctx.complete(topic)


async def choosy(ctx: Ctx, content: Content, size: int) -> Transition:
    return ctx.complete(f"{size}")


@pytest.mark.parametrize(
    ("handler", "named", "says"),
    [
        (
            steer,
            ["steer"],
            "step 'work': on_interrupt=['steer']: no such step; the steps are: begin, work, steer, finish",
        ),
        (steer, "stear", "step 'work': on_interrupt='stear': no such step; the steps are: begin, work, steer, finish"),
        (deaf, "steer", "that step takes no message; give it a parameter `content: Content`"),
        (choosy, "steer", "that step needs size: int; 'work' has none; give it a default"),
    ],
)
def test_a_step_that_cannot_meet_a_message(handler: Any, named: Any, says: str) -> None:
    """
    The mistake is found when the skill is defined.
    """
    with pytest.raises(DefinitionError) as caught:
        table(
            "wrong",
            Step("begin", begin).start(),
            Step("work", work).on_interrupt(named),
            Step("steer", handler),
            Step("finish", finish),
        )

    assert says in str(caught.value)
