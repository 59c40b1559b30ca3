"""Steps: what they are entered with, how they ask, and where they go."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from refold import (
    Cmd,
    Content,
    Ctx,
    Step,
    TaskState,
    Transition,
    UserMessage,
    flow_skill,
    step,
    table,
)
from tests.core.byhand import ByHand
from tests.core.small import BOTH, Order, Verdict, one_step, reason_of


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


def test_a_start_step_is_seeded() -> None:
    """
    The message by its type; containers and models empty, optional ones None, the rest by their defaults.
    """
    got: dict[str, Any] = {}

    def begin(
        ctx: Ctx,
        content: Content,
        heard: UserMessage,
        history: list[str],
        counts: dict[str, int],
        pair: tuple[int, ...],
        basket: Basket,
        note: str | None,
        limit: int = 3,
        *,
        maybe: Content | None,
    ) -> Transition:
        got.update(locals())
        return ctx.complete()

    task = ByHand(one_step(begin))
    task.say("hello", sender="ada")

    del got["ctx"], got["got"]
    assert got == {
        "content": Content.from_text("hello"),
        "heard": UserMessage(content=Content.from_text("hello"), sender="ada"),
        "history": [],
        "counts": {},
        "pair": (),
        "basket": Basket(),
        "note": None,
        "limit": 3,
        "maybe": Content.from_text("hello"),
    }


def test_a_default_is_not_shared_between_tasks() -> None:
    """
    A step may write into what it got by default; the next task begins afresh.
    """

    def begin(ctx: Ctx, seen: list[int] = []) -> Transition:  # noqa: B006 - that this is safe is the claim
        seen.append(1)
        return ctx.complete(str(seen))

    for _ in range(2):
        task = ByHand(one_step(begin))
        task.say()
        assert task.said == ["[1]"]


def test_a_step_starts_from_the_skills_input() -> None:
    """
    The parameter whose type is the skill's `input` is the first message's data.
    """

    @flow_skill(id="orders", input=Order)
    class Orders:
        @step(start=True)
        async def begin(self, ctx: Ctx, order: Order) -> Transition:
            return ctx.complete(f"{order.amount} {order.item}")

    task = ByHand(Orders)
    task.feed(UserMessage(content=Content.from_data({"item": "tea", "amount": 2})))

    assert task.said == ["2 tea"]


@pytest.mark.parametrize(
    ("input", "annotation", "data", "came"),
    [
        (list[int], list[int], [1, 2], "[1, 2]"),
        (dict[str, int], dict[str, int], {"a": 1}, "{'a': 1}"),
        (Order | None, Order | None, {"item": "tea"}, "Order(item='tea', amount=1)"),
        (Annotated[list[int], "of them"], Annotated[list[int], "of them"], [1], "[1]"),
    ],
)
def test_an_input_may_be_any_type(input: Any, annotation: Any, data: Any, came: str) -> None:
    """
    Of a type that is written twice, Python makes two objects, which are equal.
    """

    async def begin(ctx: Ctx, given: Any) -> Transition:
        return ctx.complete(repr(given))

    begin.__annotations__["given"] = annotation
    task = ByHand(table("takes", Step("begin", begin).start(), input=input))
    task.feed(UserMessage(content=Content.from_data(data)))

    assert task.said == [came]


def test_files_keep_their_bytes_on_the_way_into_a_step() -> None:
    """
    A step's arguments go through JSON data; bytes come out as they went in.
    """

    @flow_skill(id="reads_file")
    class ReadsFile:
        @step(start=True)
        async def begin(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.goto("later", file=content)

        @step
        async def later(self, ctx: Ctx, file: Content) -> Transition:
            first = await ctx.ask("again", "Once more?")
            return ctx.complete(str([file.parts[0].raw, first.parts[0].raw]))

    task = ByHand(ReadsFile, cut=True)
    picture = Content.model_validate({"parts": [{"raw": b"\xff\xd8", "media_type": "image/jpeg"}]})
    task.feed(UserMessage(content=picture))
    task.feed(UserMessage(content=picture))

    assert task.said[-1] == str([b"\xff\xd8", b"\xff\xd8"])


@BOTH
def test_a_step_asks_inline(cut: bool) -> None:
    """
    `ctx.ask` waits where it stands; a reply that does not fit is refused and the task still waits.
    """

    @flow_skill(id="asks_inline")
    class AsksInline:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            verdict = await ctx.ask("sure", "Sure?", expect=Verdict)
            words = await ctx.ask("words", "Any last words?")
            return ctx.complete(f"{verdict.ok} {words.text}")

    task = ByHand(AsksInline, cut=cut)
    task.say()
    assert (task.waiting, task.state) == (["sure"], TaskState.PAUSED)
    assert task.say("perhaps").refused.startswith("the reply to 'sure' must fit Verdict: ")
    task.feed(UserMessage(content=Content.from_data({"ok": True})))
    task.say("none")

    assert task.said == ["Sure?", "Any last words?", "True none"]


@BOTH
def test_a_step_asks_several_people_at_once(cut: bool) -> None:
    """
    Questions and commands gather alike; the results are in the order of the arguments.
    """

    @flow_skill(id="asks_all")
    class AsksAll:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            one, draft, other = await ctx.gather(ctx.ask("one", "1?"), ctx.llm("a"), ctx.ask("two", "2?"))
            return ctx.complete(f"{one.text} {draft} {other.text}")

    task = ByHand(AsksAll, cut=cut)
    task.say()
    task.say("second", slot="two")
    task.say("first")
    assert task.out == ["a"]
    task.give("a", "draft")

    assert task.said[-1] == "first draft second"


@BOTH
def test_an_answer_is_not_taken_for_the_next_questions(cut: bool) -> None:
    """
    Two answers that were met together do not answer what is asked after them, even under the same name.
    """

    @flow_skill(id="asks_again")
    class AsksAgain:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            await ctx.gather(ctx.ask("name", "Name?"), ctx.ask("age", "Age?"))
            return ctx.await_input("age", "Really?")

        @step(resume_from="begin")
        async def sure(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.complete(content.text)

    task = ByHand(AsksAgain, cut=cut)
    task.say()
    task.say("Ada", slot="name")
    task.say("36", slot="age")
    assert (task.state, task.said[-1]) == (TaskState.PAUSED, "Really?")
    task.say("37")

    assert task.said[-1] == "37"


@flow_skill(id="carries")
class Carries:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content, order: Order | None) -> Transition:
        given = {"order": order, "note": content.text}
        match content.text:
            case "wrong":
                given["order"] = "tea"
            case "unknown":
                given["colour"] = "red"
            case "missing":
                del given["order"]
            case _:
                given["order"] = Order(item="tea")
        return ctx.await_input("content", "How many?", **given)  # type: ignore[arg-type]  # a wrong type on purpose

    @step(resume_from="begin")
    async def answered(self, ctx: Ctx, order: Order, note: str, content: Content) -> Transition:
        return ctx.complete(f"{content.text} {order.item}, {note}")


@BOTH
def test_what_is_carried_comes_back_with_the_answer(cut: bool) -> None:
    """
    The step that resumes gets the carried payload, and the reply by its type, whatever the slot is called.
    """
    task = ByHand(Carries, cut=cut)
    task.say("please")
    task.say("three")

    assert task.said == ["How many?", "three tea, please"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("wrong", "step 'answered' takes order: Order, but got 'tea'"),
        ("unknown", "step 'answered' takes no colour; it takes: order, note, content"),
        ("missing", "step 'answered' needs order: Order, and nothing will give it: pass it on by keyword"),
    ],
)
def test_what_is_carried_is_checked_before_the_question(text: str, reason: str) -> None:
    """
    A payload that the resuming step cannot take fails the task before a person is asked, not after the answer.
    """
    task = ByHand(Carries)
    task.say(text)

    assert task.reason.startswith(reason)
    assert task.said == []


@flow_skill(id="decides")
class Decides:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.await_input("verdict", "Well?")

    @step(resume_from="begin")
    async def decided(self, ctx: Ctx, verdict: Verdict) -> Transition:
        return ctx.complete(str(verdict.ok))


@BOTH
def test_a_parameter_named_like_the_slot_is_the_decoded_reply(cut: bool) -> None:
    """
    Its annotation says what the reply must fit: what does not is refused, and the task still waits.
    """
    task = ByHand(Decides, cut=cut)
    task.say()
    assert task.say("yes").refused.startswith("the reply to 'verdict' must fit Verdict: ")
    task.feed(UserMessage(content=Content.from_data({"ok": False})))

    assert task.said[-1] == "False"


def test_each_step_resumes_where_it_says() -> None:
    """
    With several questions, an answer enters the step that resumes from the one that asked.
    """

    @flow_skill(id="chain")
    class Chain:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.await_input("name", "Name?")

        @step(resume_from="begin")
        async def named(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.await_input("town", "Town?", name=content.text)

        @step(resume_from="named")
        async def placed(self, ctx: Ctx, content: Content, name: str) -> Transition:
            return ctx.complete(f"{name} of {content.text}")

    task = ByHand(Chain, cut=True)
    task.say()
    task.say("Ada")
    task.say("London")

    assert task.said == ["Name?", "Town?", "Ada of London"]
    assert task.moves == ["start", *["pause_for_approval", "approval_granted"] * 2, "complete"]


async def judge(ctx: Ctx, work: Order, critique: Verdict, words: str = "none") -> Transition:
    work.amount += 1
    return ctx.complete(f"{work.item} {work.amount} {critique.ok} {words}")


@BOTH
def test_a_goto_with_commands_is_entered_when_they_are_back(cut: bool) -> None:
    """
    Each result goes, decoded, to the parameter named like its command; the payload is as it was at the goto.
    """

    def begin(content: Content) -> Transition:
        work = Order(item=content.text)
        first, second = Cmd.llm("critique", expect=Verdict), Cmd.llm("words")
        onward = Transition.goto("judge", work=work).cmd(first).cmd(second)
        work.amount = 100
        return onward

    task = ByHand(one_step(begin, Step("judge", judge)), cut=cut)
    task.say("tea")
    task.give("words", "well")
    assert task.state is TaskState.RUNNING
    task.give("critique", {"ok": True})

    assert task.said == ["tea 101 True well"]


@pytest.mark.parametrize(
    ("onward", "reason"),
    [
        (
            Transition.goto("judge", work=Order(item="x")).cmd(Cmd.llm("verdict")),
            "step 'judge' has no parameter 'verdict' for the result of the command of that id; it takes: work,",
        ),
        (
            Transition.goto("judge", work=Order(item="x")).cmd(Cmd.llm("words")),
            "step 'judge' needs critique: Verdict, and nothing will give it: pass it on by keyword",
        ),
        (
            Transition.goto("judge", work=5).cmd(Cmd.llm("critique")),
            "step 'judge' takes work: Order, but got 5: ",
        ),
        (
            Transition.goto("judge", work=Order(item="x"), critique=Verdict(ok=True)).cmd(Cmd.ask_user("q", "?")),
            "step 'begin' asks 'q' and goes to 'judge' at once; return `ctx.await_input(...)`, and meet the answer",
        ),
        (
            Transition.goto("judge", work=Order(item="x")),
            "step 'judge' needs critique: Verdict, and nothing gave it",
        ),
        (
            Transition.goto("nowhere").cmd(Cmd.llm("a")),
            "step 'begin' goes to 'nowhere', which does not exist; the steps are: begin, judge",
        ),
        (Transition.goto("no" + "where"), "step 'begin' goes to 'nowhere', which does not exist; the steps are: begin"),
        (Transition.goto("begin", words="x"), "step 'begin' takes no words; it takes: nothing"),
    ],
)
def test_a_goto_that_cannot_be_entered_is_found_at_the_goto(onward: Transition, reason: str) -> None:
    """
    Nothing is asked for that would lead to a step which then cannot be entered.
    """

    def begin() -> Transition:
        return onward

    task = ByHand(one_step(begin, Step("judge", judge)))
    entry = task.say()

    assert task.reason.startswith(reason)
    assert entry.commands == ()


def test_a_wrong_type_is_caught_at_the_goto() -> None:
    """
    The payload is validated where it is handed on: a wrong type, a model that was written into, what is no data.
    """

    def to_judge(**payload: Any) -> str:
        def begin() -> Transition:
            return Transition.goto("judge", **payload)

        return reason_of(begin, Step("judge", judge))

    written_into = Order(item="x")
    written_into.amount = -5

    assert to_judge(work="x").startswith("step 'judge' takes work: Order, but got 'x': ")
    assert "greater than or equal to 1" in to_judge(work=written_into)
    assert to_judge(work=Order(item="x"), critique=object()).startswith(
        "step 'judge' takes critique: Verdict, but got <"
    )
