from datetime import timedelta

import pytest
from pydantic import BaseModel

from refold import Artifact, CommandError, Content, Ctx, Part, SkillOutcome, Transition, flow_skill, step, tool
from refold.core.events import UserMessage
from refold.testing import (
    Played,
    ScriptError,
    cancel,
    fails,
    fires,
    passes,
    permanent,
    play,
    refused,
    reply,
    transient,
    user,
)
from refold.testing.play import START
from refold.testing.turns import Turn
from workflows.hello import Hello
from workflows.research_loop import ResearchLoop

ASKS = {"decision": "NeedsHumanInput", "text": "For whom?"}
APPROVES = {"decision": "Approved"}


class Order(BaseModel):
    id: str
    cents: int


@tool(effect="idempotent")
def charge(order: Order) -> int:
    return order.cents


@tool(effect="read_only")
async def stock(item: str) -> int:
    return len(item)


@flow_skill(id="shop", input=Order)
class Shop:
    @step(start=True)
    async def sell(self, ctx: Ctx, order: Order) -> Transition:
        if await ctx.tool(stock, item=order.id) == 0:
            await ctx.sleep(60, id="delivery")
        paid = await ctx.tool(charge, order=order)
        return ctx.complete(f"Paid {paid}.", [Artifact.from_data("receipt", {"cents": paid})])


@flow_skill(id="asks_twice")
class AsksTwice:
    @step(start=True)
    async def ask(self, ctx: Ctx, content: Content) -> Transition:
        size, colour = await ctx.gather(ctx.ask("size", "Which size?", expect=int), ctx.ask("colour", "Which colour?"))
        outcome = await ctx.skill("check", "checker", {"size": size})
        return ctx.complete(f"{size} {colour.text} {outcome.text}")


def test_a_script_says_what_is_asked_and_what_comes_back() -> None:
    """
    Replies answer by id, strings are the user's words, and the result shows all that became of it.
    """
    story = play(
        ResearchLoop,
        "tides",
        reply("research", "d1"),
        reply("critique", ASKS),
        "For children.",
        reply("research", "d2"),
        reply("critique", APPROVES),
    )

    assert story.status == "completed"
    assert story.said == ("For whom?", "Approved.")
    assert story.artifacts == {"final.txt": "d2"}
    assert [command.id for command in story.asked] == ["research", "critique", "guidance", "research", "critique"]
    assert story.lifecycle == ("planned", "running", "paused", "running", "done")
    assert [entry.seq for entry in story.entries] == [1, 2, 3, 4, 5, 6]
    assert "4 user_message 'For children.' -> llm 'research' | running" in str(story)


def test_a_script_may_be_a_list_and_end_at_a_question() -> None:
    """
    A task that waits for a person is a good place to stop.
    """
    story = play(ResearchLoop, ["tides", reply("research", "d1"), reply("critique", ASKS)])

    assert story.status == "input-required"
    assert story.waiting_for == ("guidance",)


def test_answers_stand_in_for_models() -> None:
    """
    A list answers in order, a function gets the command, and a kind stands for all commands of it.
    """
    asked = {"critique": [ASKS, APPROVES], "llm": lambda command: f"on {command.input.text}"}

    assert play(ResearchLoop, "tides", "short", answers=asked).artifacts == {
        "final.txt": "on tides\non tides | For whom? | short"
    }
    assert play(Hello, "Ada", answers={"greeting": "Hello Ada."}).said == ("Hello Ada.",)


def test_tools_are_called_with_their_arguments_as_types() -> None:
    """
    Real tools, sync and async, get what the skill asked for, read as their annotations say.
    """
    story = play(Shop, user(Order(id="A1", cents=90)), tools=[charge, stock])

    assert story.said == ("Paid 90.",)
    assert story.artifacts == {"receipt": {"cents": 90}}


async def test_async_tools_work_in_async_tests() -> None:
    """
    A script may be played while an event loop runs.
    """
    assert play(Shop, user({"id": "A1", "cents": 90}), tools=[charge, stock]).status == "completed"


def test_a_timer_is_fired_by_name_or_by_time() -> None:
    """
    The clock goes on to the moment the timer is due.
    """
    start = user(Order(id="", cents=1))
    fired = play(Shop, start, reply("stock", 0), fires("delivery"), reply("charge", 1))
    passed = play(Shop, start, reply("stock", 0), passes(61), reply("charge", 1))
    by_itself = play(Shop, start, tools=[charge, stock])

    assert fired.journal() == by_itself.journal()
    assert fired.entries[-1].at - fired.entries[0].at == timedelta(seconds=60)
    assert passed.entries[-1].at - passed.entries[0].at == timedelta(seconds=61)


def test_failures_are_tried_again_or_met_by_the_skill() -> None:
    """
    What is transient backs off and goes out again before it is answered; what is permanent is the skill's.
    """
    start = user(Order(id="A1", cents=1))
    retried = play(Shop, start, reply("stock", 3), fails("charge", transient("busy")), reply("charge", 1))
    fired = play(
        Shop, start, reply("stock", 3), fails("charge", transient("busy")), fires("charge"), reply("charge", 1)
    )
    declined = play(Shop, start, reply("stock", 3), fails("charge", "declined"))
    raised = play(Shop, start, answers={"stock": 1, "charge": ConnectionError("down")})

    assert retried.lifecycle == ("planned", "running", "retrying", "running", "done")
    assert retried.journal() == fired.journal()
    assert (declined.status, declined.reason) == ("failed", "charge: declined")
    assert (raised.status, raised.reason) == ("failed", "charge: the connection failed or broke off (no retry left)")


def test_several_questions_are_answered_by_slot() -> None:
    """
    Each answer names its slot; what does not fit is refused and leaves the question open.
    """
    story = play(
        AsksTwice,
        "shirt",
        user("red", slot="colour"),
        refused(user("huge", slot="size"), because="must fit"),
        refused(user("x", slot="colour"), because="nothing waits"),
        user(7, slot="size"),
        reply("check", SkillOutcome(task_id="C", text="is there")),
    )

    assert story.said[-1] == "7 red is there"
    assert story.snapshot.refused == 2


def test_a_skill_is_answered_by_its_text() -> None:
    """
    What another skill comes to may be written as the last thing it says.
    """
    story = play(AsksTwice, "shirt", user("red", slot="colour"), user(7, slot="size"), answers={"checker": "is there"})

    assert story.said[-1] == "7 red is there"


def test_a_parts_timeout_comes_when_the_script_says_so() -> None:
    """
    It is fired by the part's id or by time, and never comes due by itself.
    """

    @flow_skill(id="patient")
    class Patient:
        @step(start=True)
        async def go(self, ctx: Ctx, content: Content) -> Transition:
            await ctx.tool("stock", item="cup")
            outcome = await ctx.skill("part", "checker", content.text, timeout_s=60)
            return ctx.complete(outcome.text)

    stock = {"stock": 1}
    fired = play(Patient, "shirt", fires("part"), answers=stock)
    assert (fired.status, fired.snapshot.at - START) == ("failed", timedelta(seconds=60))
    assert fired.journal() == play(Patient, "shirt", reply("stock", 1), passes(60)).journal()
    assert play(Patient, "shirt", reply("part", "is there"), answers=stock).said == ("is there",)
    with pytest.raises(ScriptError, match=r"'timeout of part' is due in 60 s: fires\('part'\)"):
        play(Patient, "shirt", answers=stock)


def test_cut_changes_nothing() -> None:
    """
    Through JSON and with no running step before each event, the journal is the same.
    """
    script: list[str | Turn] = ["shirt", user("red", slot="colour"), user(7, slot="size"), reply("check", "yes")]

    assert play(AsksTwice, script).journal() == play(AsksTwice, script, cut=True).journal()


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_cut_changes_no_number_that_json_cannot_hold(number: float) -> None:
    """
    Neither in an answer nor in an event; both are kept by their names.
    """

    @flow_skill(id="counts")
    class Counts:
        @step(start=True)
        async def go(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.complete(f"{content.data} {await ctx.tool('count')}")

    said = UserMessage(content=Content(parts=(Part(data={"n": number}),)))
    first, second = (play(Counts, said, reply("count", number), cut=cut) for cut in (False, True))

    assert first.journal() == second.journal()
    assert first.said == second.said


def test_a_task_is_canceled_by_the_script() -> None:
    """
    A cancel ends it with its reason.
    """
    story = play(ResearchLoop, "tides", cancel("not now"))

    assert (story.status, story.reason) == ("canceled", "not now")


def test_a_raw_event_is_a_turn() -> None:
    """
    Whoever needs an event as the core knows it writes that.
    """
    assert play(ResearchLoop, UserMessage(content=Content.from_text("tides")), unfinished=True).status == "working"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param([], "too early: the first message starts the task", id="nothing"),
        pytest.param(["tides"], "too early: llm 'research' is out", id="too early"),
        pytest.param(
            ["tides", reply("critic", "x")], "'critic' was not asked for.*llm 'research' is out", id="unasked"
        ),
        pytest.param(["tides", "and?"], "turn 2.*waits for no message; llm 'research' is out", id="message"),
        pytest.param(["tides", fires("nap")], "no timer 'nap' is set; llm 'research'", id="timer"),
        pytest.param(["tides", reply("research", 7)], "'research' expects text", id="not text"),
        pytest.param(
            ["tides", reply("research", "d"), reply("critique", "fine")], "does not fit.*fails\\('critique'", id="unfit"
        ),
        pytest.param(["tides", fails("research"), reply("research", "d")], "has ended \\(failed: res", id="too late"),
        pytest.param(["tides", refused(cancel())], "it was taken", id="taken"),
        pytest.param(["tides", refused("x", because="asleep")], "not 'asleep'", id="other reason"),
    ],
)
def test_what_does_not_agree_is_told(script: list[str | Turn], message: str) -> None:
    """
    The error names the turn, what came, and what was awaited.
    """
    with pytest.raises(ScriptError, match=message):
        play(ResearchLoop, script)


def test_answers_are_scripts_too() -> None:
    """
    Too few and too many in a list are told.
    """
    with pytest.raises(ScriptError, match="'research' is out, whose answers are used up"):
        play(ResearchLoop, "tides", answers={"research": []})
    with pytest.raises(ScriptError, match=r"left over: 'greeting' \(1\)"):
        play(Hello, "Ada", answers={"greeting": ["hi", "ho"]})


def test_a_loop_is_found() -> None:
    """
    A skill that never ends does not hang the test; one that has much to do is given more.
    """
    with pytest.raises(ScriptError, match=r"500 events, and no end: .* give play\(limit=\) a larger number"):
        play(ResearchLoop, "tides", answers={"research": "d", "critique": {"decision": "NeedsRevision"}})
    with pytest.raises(ScriptError, match="501 events, and no end"):
        play(ResearchLoop, "tides", answers={"research": "d", "critique": {"decision": "NeedsRevision"}}, limit=501)


def test_a_timer_is_not_replied_to() -> None:
    """
    The way out is in the message.
    """
    with pytest.raises(ScriptError, match=r"'delivery' is a timer; write fires\('delivery'\)"):
        play(Shop, user(Order(id="", cents=1)), reply("stock", 0), reply("delivery"))


def test_an_assertion_in_a_stand_in_fails_the_test() -> None:
    """
    It is the test's own, and no failure of the command.
    """

    def never(_: object) -> str:
        raise AssertionError("asked")

    with pytest.raises(AssertionError, match="asked"):
        play(Hello, "Ada", answers={"greeting": never})


def test_a_failed_tool_can_be_caught_by_the_skill() -> None:
    """
    Stand-ins may give failures.
    """

    @flow_skill(id="careful")
    class Careful:
        @step(start=True)
        async def go(self, ctx: Ctx, content: Content) -> Transition:
            try:
                await ctx.tool("charge")
            except CommandError as error:
                return ctx.complete(f"no: {error.failure.message}")
            return ctx.complete("yes")

    story: Played = play(Careful, "go", answers={"charge": [permanent("declined")]})
    assert story.said == ("no: declined",)
