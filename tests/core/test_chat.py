"""Conversations: what a thread holds, what a call carries, and what stands for the rest."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from refold import (
    Cmd,
    CommandError,
    Content,
    Ctx,
    InputRejected,
    Reply,
    Said,
    SkillError,
    Status,
    ToolCall,
    ToolOffer,
    ToolReturn,
    Transition,
    UserSaid,
    flow_skill,
    step,
)
from refold.conversation import (
    INLINE_BYTES,
    ChatRequest,
    Mention,
    conversation_of,
    mismatch,
    previous_of,
    request_of,
)
from refold.core.chat import EMPTY, Frame, Prior, Thread, as_said, hash_after
from refold.core.commands import CallChat
from refold.core.events import DependencyResolved
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Perform, wanted
from refold.testing import ScriptError, calls, check_laws, play, reply
from refold.testing.plausible import replies
from refold.testing.turns import Turn
from tests.core.byhand import ByHand, busy, unknown
from tests.core.small import BOTH, one_step, reason_of
from tests.records.skills import TalksAsReducer, weather
from tests.sweeps import examples

LONG = "A long story. " * 100


class Forecast(BaseModel):
    rain: bool


@flow_skill(id="talks")
class Talks:
    """A model with a tool, in one step: it calls until it answers."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        say: list[Any] = [content]
        while True:
            heard = len(ctx.thread())
            said = await ctx.chat("model", say, instructions="Help.", tools=[weather])
            if not said.tool_calls:
                return ctx.complete(f"{said.text} ({heard} turns before)")
            say = [
                ToolReturn(id=call.id, name=call.name, value=await ctx.tool(call.name, call.args))
                for call in said.tool_calls
            ]


SCRIPT: list[str | Turn] = [
    "How is it in Oslo?",
    reply("model", calls(weather, city="Oslo")),
    reply("weather", "Rain."),
    reply("model", "Wet."),
]


@BOTH
def test_a_thread_holds_what_was_said(cut: bool) -> None:
    """
    The user, the model's wish, what came of it, the model's answer; in this order.
    """
    story = play(Talks, *SCRIPT, cut=cut)

    wish = ToolCall(id="T/1.1#1", name="weather", args={"city": "Oslo"})
    assert story.said == ("Wet. (2 turns before)",)
    assert story.snapshot.threads["main"].said == (
        UserSaid(content=Content.from_text("How is it in Oslo?")),
        Reply(tool_calls=(wish,), stop="tools"),
        ToolReturn(id="T/1.1#1", name="weather", value="Rain."),
        Reply(text="Wet."),
    )


@BOTH
def test_the_styles_converse_alike(cut: bool) -> None:
    """
    The same journal, whether steps or a reducer lead the conversation.
    """
    journals = {play(skill, *SCRIPT, cut=cut).journal() for skill in (Talks, TalksAsReducer)}

    assert len(journals) == 1


def test_a_frame_is_journaled_where_it_changes() -> None:
    """
    Instructions and tools stand in the first call, and not in the next; whoever performs it has them all the same.
    """
    story = play(Talks, *SCRIPT)
    chats = [one for one in story.asked if isinstance(one, CallChat)]
    frame = Frame(instructions="Help.", tools=(ToolOffer(name="weather"),))

    assert [chat.frame for chat in chats] == [frame, None]
    assert story.journal().count("Help.") == 1
    seen: list[Frame] = []

    def model(chat: CallChat) -> Any:
        assert chat.frame is not None
        seen.append(chat.frame)
        return calls(weather, city="Oslo") if len(seen) == 1 else "Wet."

    play(Talks, "Oslo", answers={"model": model}, tools=[weather])
    assert seen == [frame, frame]


def test_laws() -> None:
    """
    Failures, retries, cancels, garbage: conversations keep the laws.
    """
    check_laws(Talks, tools=[weather], max_examples=examples(30))
    check_laws(TalksAsReducer, tools=[weather], max_examples=examples(30))


# --- what a call carries


def out(task: ByHand) -> Perform:
    return next(one for one in wanted(task.task).values() if isinstance(one, Perform))


def asked(task: ByHand) -> ChatRequest:
    """The call that is out, as it travels."""
    want = out(task)
    assert isinstance(want.command, CallChat)
    assert want.prior is not None
    return request_of(want.command, want.prior)


def test_a_call_carries_what_is_new_and_the_hash_of_the_rest() -> None:
    """
    The first call has its frame and no past; the second has the past's length and hash, and the frame's hash.
    """
    task = ByHand(Talks)
    task.say("Oslo?")
    frame = Frame(instructions="Help.", tools=(ToolOffer(name="weather"),))
    assert asked(task) == ChatRequest(say=as_said("Oslo?"), frame=frame)

    task.give("model", Reply(tool_calls=(ToolCall(id="c1", name="weather", args={"city": "Oslo"}),), stop="tools"))
    task.give("weather", "Rain.")
    thread = task.task.threads["main"]
    assert asked(task) == ChatRequest(
        prior_len=2,
        prior_hash=thread.hash,
        say=(ToolReturn(id="c1", name="weather", value="Rain."),),
        frame_hash=frame.hash,
    )


def test_what_is_large_is_mentioned() -> None:
    """
    A long message or result is in history already; the call carries its hash.
    """
    task = ByHand(Talks)
    task.say(LONG)
    assert isinstance(asked(task).say[0], Mention)
    task.give("model", Reply(tool_calls=(ToolCall(id="c1", name="weather"),), stop="tools"))
    task.give("weather", LONG)

    assert asked(task).say[0] == Mention(hash=asked(task).say[0].hash, id="c1", name="weather")  # type: ignore[union-attr]
    assert len(asked(task).model_dump_json()) < INLINE_BYTES


def test_a_conversation_is_given_on_request() -> None:
    """
    The turns in between two numbers, those of the call that is out among them; no task invents one.
    """
    task = ByHand(Talks)
    task.say("Oslo?")
    task.give("model", Reply(tool_calls=(ToolCall(id="c1", name="weather"),), stop="tools"))
    task.give("weather", "Rain.")

    found = conversation_of(task.task, "main")
    assert [one.kind for one in found.said] == ["user", "reply", "return"]
    assert conversation_of(task.task, "main", 1, 2).said == found.said[1:2]
    assert mismatch(asked(task), found.said[:2], found.said[2:], found.frame) == ""
    with pytest.raises(InputRejected, match="no conversation 'other'; it has 'main'"):
        conversation_of(task.task, "other")


def test_another_past_is_noticed() -> None:
    """
    What does not hash to what the call mentions is told by what differs.
    """
    task = ByHand(Talks)
    task.say("Oslo?")
    task.give("model", Reply(tool_calls=(ToolCall(id="c1", name="weather"),), stop="tools"))
    task.give("weather", "Rain.")
    request, found = asked(task), conversation_of(task.task, "main")
    prior, say = found.said[:2], found.said[2:]

    assert "the call goes on after 2 turns that hash to" in mismatch(request, prior[:1], say, found.frame)
    assert "is not what it mentions" in mismatch(request, prior, as_said("Sun."), found.frame)
    assert "frame of thread 'main'" in mismatch(request, prior, say, Frame())


@given(said=st.lists(st.lists(replies(Frame(tools=(ToolOffer(name="weather"),))), max_size=3), max_size=5))
def test_a_hash_is_of_what_was_said_and_of_nothing_else(said: list[list[Reply]]) -> None:
    """
    However the turns were added, and after a way through JSON.
    """
    thread = EMPTY
    for some in said:
        thread = thread.after(some)
    every: list[Said] = [one for some in said for one in some]

    assert thread.hash == EMPTY.after(every).hash == hash_after("", thread.said)
    assert Thread.model_validate_json(thread.model_dump_json()) == thread
    assert hash_after("", Thread.model_validate_json(thread.model_dump_json()).said) == thread.hash


def test_a_request_reads_back() -> None:
    """
    A call that travels as JSON is the call that was sent.
    """
    chat = Cmd.chat("a", [LONG, ToolReturn(id="c", name="n", value={"x": LONG}, failed=True), Reply(text="x")])
    request = request_of(chat, Prior(thread=EMPTY, framed=False))

    assert ChatRequest.model_validate_json(request.model_dump_json()) == request


# --- threads


def test_a_call_that_fails_leaves_its_thread_as_it_was() -> None:
    """
    Tried again it says the same; given up, nothing was said.
    """

    async def begin(ctx: Ctx) -> Transition:
        try:
            await ctx.chat("a", "One?")
        except CommandError:
            assert ctx.thread() == ()
        said = await ctx.chat("a", "Two?")
        return ctx.complete(f"{said.text} {len(ctx.thread())}")

    task = ByHand(one_step(begin))
    task.say()
    first = asked(task)
    task.fail("a", busy())
    task.ring("a")
    assert asked(task) == first
    task.fail("a")
    task.give("a", "Yes.")

    assert task.said == ["Yes. 2"]
    assert task.task.threads["main"].said == (*as_said("Two?"), Reply(text="Yes."))


def test_threads_are_apart() -> None:
    """
    Two conversations at once, each with its own past and frame.
    """

    async def begin(ctx: Ctx) -> Transition:
        for_, against = await ctx.gather(
            ctx.chat("for", "Why?", thread="for", instructions="Defend."),
            ctx.chat("against", "Why not?", thread="against", instructions="Attack."),
        )
        return ctx.complete(f"{for_.text} {against.text}")

    story = play(one_step(begin), "go", reply("against", "No."), reply("for", "Yes."))

    assert story.said == ("Yes. No.",)
    assert {name: len(thread.said) for name, thread in story.snapshot.threads.items()} == {"for": 2, "against": 2}


def test_one_call_at_a_time_goes_on_in_a_thread() -> None:
    """
    Two at once would not know of each other.
    """

    async def begin(ctx: Ctx) -> Transition:
        await ctx.gather(ctx.chat("a", "One?"), ctx.chat("b", "Two?"))
        return ctx.complete()

    assert reason_of(begin).startswith("chat 'b' goes on with thread 'main' while 'a' waits for a reply in it")


def test_a_conversation_begins_with_something() -> None:
    """
    A model that is told nothing has nothing to reply to; later it may be asked to go on.
    """

    async def silent(ctx: Ctx) -> Transition:
        await ctx.chat("a")
        return ctx.complete()

    async def twice(ctx: Ctx) -> Transition:
        await ctx.chat("a", "Tell me more.")
        await ctx.chat("a")
        return ctx.complete()

    assert reason_of(silent).startswith("chat 'a' begins thread 'main' and says nothing in it")
    assert play(one_step(twice), "go", answers={"a": "More."}).status == "completed"


def test_old_turns_can_be_left_out() -> None:
    """
    The model reads on from a user's turn; the thread keeps all.
    """

    async def begin(ctx: Ctx) -> Transition:
        await ctx.chat("a", "One?")
        await ctx.chat("a", "Two?", since=2)
        return ctx.complete()

    async def wrong(ctx: Ctx) -> Transition:
        await ctx.chat("a", "One?")
        await ctx.chat("a", "Two?", since=1)
        return ctx.complete()

    story = play(one_step(begin), "go", answers={"a": "Yes."})
    assert len(story.snapshot.threads["main"].said) == 4
    assert "since turn 1, where the user says nothing" in reason_of(wrong, answers=("x",))


def test_what_a_skill_reads_of_a_thread_is_its_own() -> None:
    """
    Writing into it changes nothing that is recorded.
    """

    async def begin(ctx: Ctx) -> Transition:
        said = await ctx.chat("a", [Content.from_data({"n": 1})], tools=["look"])
        said.tool_calls[0].args["n"] = 2
        one, two = ctx.thread()
        one.content.data["n"] = 2  # type: ignore[union-attr, index, call-overload]
        two.tool_calls[0].args["n"] = 3  # type: ignore[union-attr]
        return ctx.complete()

    story = play(one_step(begin), "go", reply("a", calls("look", n=1)))
    written = story.snapshot.model_dump_json()
    assert '"n":2' not in written
    assert '"n":3' not in written


# --- outcomes that others give


def test_an_operator_may_reply_for_the_model() -> None:
    """
    A blocked call takes a text, or a reply as data; what is neither is refused.
    """
    task = ByHand(Talks)
    task.say("Oslo?")
    task.fail("model", unknown())
    assert "must be a text, or a Reply as data" in task.feed(DependencyResolved(outcome=3)).refused
    wish = Reply(tool_calls=(ToolCall(id="c1", name="weather", args={"city": "Oslo"}),), stop="tools")
    task.resolve(outcome=wish.model_dump(mode="json"))
    task.give("weather", "Rain.")
    task.fail("model", unknown())
    task.resolve(outcome="Wet.")

    assert (task.status, task.said) == (Status.COMPLETED, ["Wet. (2 turns before)"])
    assert len(task.task.threads["main"].said) == 4


@BOTH
def test_a_recovered_task_goes_on_with_its_conversations(cut: bool) -> None:
    """
    It asks again what failed, after the same turns and within the same frame.
    """
    task = ByHand(Talks, cut=cut)
    task.say("Oslo?")
    task.give("model", Reply(tool_calls=(ToolCall(id="c1", name="weather"),), stop="tools"))
    task.give("weather", "Rain.")
    before, found = asked(task), conversation_of(task.task, "main")
    task.fail("model")
    assert task.status is Status.FAILED

    again = task.recovered()
    assert asked(again) == before
    assert conversation_of(again.task, "main") == found
    again.give("model", "Wet.")
    assert again.said == ["Wet. (2 turns before)"]


@BOTH
def test_a_branch_goes_on_with_the_conversations_of_its_entry(cut: bool) -> None:
    """
    It has what was said by then, and says from there what it likes; the other task's thread is as it was.
    """
    task = ByHand(Talks, cut=cut)
    task.say("Oslo?")
    task.give("model", Reply(tool_calls=(ToolCall(id="c1", name="weather"),), stop="tools"))
    task.give("weather", "Rain.")
    before = asked(task)
    task.give("model", "Wet.")

    branch = task.forked(3, live=True)
    assert asked(branch) == before
    branch.give("model", "Dry.")
    assert [thread.task.threads["main"].said[-1] for thread in (task, branch)] == [
        Reply(text="Wet."),
        Reply(text="Dry."),
    ]
    assert branch.task.threads["main"].hash != task.task.threads["main"].hash


# --- mistakes


def test_a_tool_is_offered_once() -> None:
    """
    A model asks for a tool by name.
    """
    with pytest.raises(SkillError, match="offers two tools named weather"):
        Cmd.chat("a", "x", tools=[weather, "weather"])


def test_scripts_answer_a_chat_with_what_a_model_can_say() -> None:
    """
    Text, tool calls, a reply; a value where one is expected, that fits.
    """

    async def begin(ctx: Ctx) -> Transition:
        said = await ctx.chat("a", "Oslo?", expect=Forecast)
        return ctx.complete(str(ctx.decode(Forecast, said.value).rain))

    assert play(one_step(begin), "go", reply("a", {"rain": True})).said == ("True",)
    with pytest.raises(ScriptError, match="does not fit what it expects: rain"):
        play(one_step(begin), "go", reply("a", {}))
    with pytest.raises(ScriptError, match="is answered with text, with calls"):
        play(Talks, "go", reply("model", 3))


def carried(*names: str, empty: Collection[str] = ()) -> dict[str, str]:
    """What the next task has in which thread, after a task that said each thread's name in those that are not empty."""
    threads = {name: EMPTY if name in empty else EMPTY.after(as_said(name)) for name in names}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    taken = previous_of(Snapshot(task_id="t", skill="s", at=now, threads=threads)).threads
    return {name: thread.said[0].content.text for name, thread in taken.items() if isinstance(thread.said[0], UserSaid)}


@given(names=st.sets(st.from_regex(r"user(~[0-9]{1,2}){0,2}", fullmatch=True).filter(lambda one: one[-2:] != "~2")))
def test_the_next_task_has_each_thread_under_its_name(names: set[str]) -> None:
    """
    Also if the names end in numbers.
    """
    assert carried(*names) == {name: name for name in names}


def test_the_next_task_has_the_newest_copy_of_a_thread() -> None:
    """
    Copies are numbered from 2 on; a number that does not follow is part of a name.
    """
    assert carried("main", "main~2", "main~3", "main~5", "user~41", "user~41~2") == {
        "main": "main~3",
        "main~5": "main~5",
        "user~41": "user~41~2",
    }


def test_the_next_task_has_the_conversation_whose_copy_is_empty() -> None:
    """
    A call that starts a copy makes the thread; if the call fails, the copy has no turns, and its number is taken.
    """
    assert carried("main", "main~2", "main~3", empty=["main~3"]) == {"main": "main~2"}
    assert carried("main", "main~2", "main~3", empty=["main~2", "main~3"]) == {"main": "main"}
