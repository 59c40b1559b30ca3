"""Hooks look on, at fixed points in a fixed order, and raise the flags that a step acts on; nothing else."""

from typing import Any

import pytest

from refold import DefinitionError, Failure, FailureKind
from refold.agent import (
    AfterInvocation,
    AfterModelCall,
    AfterToolCall,
    AfterTools,
    BeforeInvocation,
    BeforeModelCall,
    BeforeToolCall,
    BeforeTools,
    MessageAdded,
    Plugin,
    Repeat,
    Sequential,
    Think,
    Together,
)
from refold.agent.plugins import EVENTS, RAISED_STAYS, HookEvent
from refold.core.chat import Reply, ToolCall, ToolReturn, UserSaid
from refold.core.commands import CallChat
from refold.testing import Played, approve, calls, fails, permanent, play, reply
from tests.agent.shop import TOOLS, price, replies, results, shop
from tests.core.byhand import ByHand

CUT = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


class Diary(Plugin):
    """Writes down what it hears."""

    def __init__(self, name: str, pages: list[str]) -> None:
        self.name, self.pages = name, pages

    def _write(self, event: HookEvent) -> None:
        self.pages.append(f"{self.name}:{type(event).__name__}")

    before_invocation = after_invocation = before_model_call = after_model_call = _write
    before_tools = after_tools = before_tool_call = after_tool_call = _write


def test_the_order_of_hooks() -> None:
    """
    In the plugins' order before something, in the reverse one after it.
    """
    pages: list[str] = []
    agent = shop(plugins=[Diary("a", pages), Diary("b", pages)])
    play(agent, "go", answers={"model": [calls("price", item="tea"), "300."]}, tools=TOOLS)

    expected = [
        *("a:BeforeInvocation", "b:BeforeInvocation"),
        *("a:BeforeModelCall", "b:BeforeModelCall", "b:AfterModelCall", "a:AfterModelCall"),
        *("a:BeforeTools", "b:BeforeTools", "a:BeforeToolCall", "b:BeforeToolCall"),
        *("b:AfterToolCall", "a:AfterToolCall", "b:AfterTools", "a:AfterTools"),
        *("a:BeforeModelCall", "b:BeforeModelCall", "b:AfterModelCall", "a:AfterModelCall"),
        *("b:AfterInvocation", "a:AfterInvocation"),
    ]
    assert pages == expected


def test_every_message_is_heard_of() -> None:
    """
    What the user, the model and the tools say, once each, in order.
    """
    heard: list[str] = []

    def hear(event: MessageAdded) -> None:
        heard.append(event.message.kind)

    play(shop(plugins=[hear]), "go", answers={"model": [calls("price", item="tea"), "300."]}, tools=TOOLS)

    assert heard == ["user", "reply", "return", "reply"]


def test_what_a_hook_may_write() -> None:
    """
    Exactly the flags, a tool's use and its result; and the state's places for plugins.
    """
    assert {event.__name__: tuple(event.WRITABLE) for event in EVENTS} == {
        "BeforeInvocation": ("cancel",),
        "AfterInvocation": ("resume",),
        "MessageAdded": (),
        "BeforeModelCall": ("cancel",),
        "AfterModelCall": ("retry",),
        "BeforeTools": ("cancel",),
        "AfterTools": (),
        "BeforeToolCall": ("cancel", "selected_tool", "tool_use"),
        "AfterToolCall": ("result", "retry"),
    }


def test_a_hook_cannot_put_a_reply_in_the_models_place() -> None:
    """
    That is a middleware's part: the task fails, and says so.
    """

    def replace(event: AfterModelCall) -> None:
        event.reply = Reply(text="mine")

    story = play(shop(plugins=[replace]), "go", reply("model", "theirs"))

    assert story.reason == (
        "a hook wrote AfterModelCall.reply, and may write retry only; to put something in a result's place, use "
        "middleware"
    )


def test_what_a_hook_writes_has_a_type() -> None:
    """
    What does not fit is told where it is written, not where it is used.
    """

    def edits(event: BeforeToolCall) -> None:
        event.tool_use = {"item": "tea"}  # type: ignore[assignment]

    story = play(shop(plugins=[edits]), "go", reply("model", calls("price", item="a")))

    assert story.reason == "a hook wrote BeforeToolCall.tool_use = {'item': 'tea'}; it is ToolCall"


@pytest.mark.parametrize(("flag", "said"), [("Not today.", "Not today."), (True, "The agent does not work on this.")])
def test_an_invocation_can_be_canceled(flag: Any, said: str) -> None:
    """
    The text is the answer, and nothing is asked. In a longer conversation the model is told of it.
    """

    def stop(event: BeforeInvocation) -> None:
        event.cancel = flag if event.state.turns == 1 else False

    story = play(shop(plugins=[stop], turns=2), "one", "two", reply("model", "ok"))
    thread = story.snapshot.threads["main"].said

    assert story.said == (said, "ok")
    assert [one.kind for one in thread] == ["user", "reply", "user", "reply"]


def test_an_answer_can_be_followed_up() -> None:
    """
    What a hook wants to resume with is said in the user's name, in the same conversation.
    """

    def again(event: AfterInvocation) -> None:
        if "maybe" in event.reply.text:
            event.resume = "Be sure."

    story = play(shop(plugins=[again]), "is it?", answers={"model": ["maybe", "yes"]})
    told = [one.content.text for one in story.snapshot.threads["main"].said if isinstance(one, UserSaid)]

    assert (story.said, told) == (("yes",), ["is it?", "Be sure."])


def test_an_answer_is_not_followed_up_for_ever() -> None:
    """
    After five times it is the answer.
    """

    def again(event: AfterInvocation) -> None:
        event.resume = "More."

    story = play(shop(plugins=[again]), "go", answers={"model": "no"})

    assert (story.said, len(story.asked)) == (("no",), 6)


def test_a_model_call_can_be_canceled() -> None:
    """
    The text is taken for the model's answer.
    """

    def stop(event: BeforeModelCall) -> None:
        event.cancel = "I would rather not."

    story = play(shop(plugins=[stop]), "go")

    assert (story.said, story.asked) == (("I would rather not.",), ())


@CUT
def test_a_model_can_be_asked_again(cut: bool) -> None:
    """
    The rejected reply is forgotten: the conversation goes on as if it had not been. The attempts are counted.
    """
    counts: list[int] = []

    def pick(event: AfterModelCall) -> None:
        if not cut:
            counts.append(event.attempt_count)
        event.retry = event.reply is not None and event.reply.text == "bad"

    story = play(
        shop(plugins=[pick], turns=2), "one", "two", answers={"model": ["fine", "bad", "bad", "good"]}, cut=cut
    )
    thread = story.snapshot.threads["main~3"].said

    assert story.said == ("fine", "good")
    assert [getattr(one, "text", "") or one.content.text for one in thread] == ["one", "fine", "two", "good"]  # type: ignore[union-attr]
    assert counts == ([] if cut else [1, 1, 2, 3])


def test_a_call_that_a_hook_repeats_is_for_the_first_model() -> None:
    """
    Also where the reply that the hook discards is a fallback's, to results of its own tool calls.
    """

    def again(event: AfterModelCall) -> None:
        event.retry = event.reply is not None and event.reply.text == "bad"

    task = ByHand(shop(model=["a:one", "b:two"], plugins=[again]))
    task.say()
    task.fail("model", Failure(kind=FailureKind.PERMANENT, type="quota_exceeded", message="no"))
    task.ring("model")
    task.give("model", Reply(tool_calls=(ToolCall(id="1", name="price", args={"item": "tea"}),), stop="tools"))
    task.give("price", 3)
    models = [task.pending("model").moved]
    task.give("model", Reply(text="bad"))
    models.append(task.pending("model").moved)
    task.give("model", Reply(text="good"))

    assert models == [1, 0]
    assert task.said[-1] == "good"


def test_a_model_is_not_asked_again_for_ever() -> None:
    """
    After five times its reply is taken.
    """

    def never(event: AfterModelCall) -> None:
        event.retry = True

    assert play(shop(plugins=[never]), "go", answers={"model": "bad"}).said == ("bad",)
    assert len(play(shop(plugins=[never]), "go", answers={"model": "bad"}).asked) == 6


def test_a_failed_model_can_be_asked_again() -> None:
    """
    A hook sees the failure, and may have the call made once more.
    """

    def again(event: AfterModelCall) -> None:
        event.retry = event.error is not None

    story = play(shop(plugins=[again]), "go", fails("model", permanent("no")), reply("model", "ok"))

    assert (story.said, replies(story)) == (("ok",), ["ok"])


@pytest.mark.parametrize("flag", [True, "Closed."])
def test_a_batch_of_tools_can_be_canceled(flag: Any) -> None:
    """
    None is called, and each call has a result that the model can read.
    """

    def stop(event: BeforeTools) -> None:
        event.cancel = flag

    wish = [calls("price", item="a"), calls("buy", item="b")]
    story = play(shop(plugins=[stop]), "go", reply("model", wish), reply("model", "ok"))
    said = "Tools were canceled." if flag is True else flag

    assert results(story) == [("price", said, True), ("buy", said, True)]


def test_one_tool_call_can_be_canceled() -> None:
    """
    The model reads the text as that call's error; the others are called.
    """

    def stop(event: BeforeToolCall) -> None:
        if event.tool_use.name == "buy":
            event.cancel = "No money."

    answers = {"model": [[calls("buy", item="b"), calls("price", item="a")], "ok"]}
    story = play(shop(plugins=[stop]), "go", answers=answers, tools=TOOLS)

    assert results(story) == [("buy", "No money.", True), ("price", 100, False)]


def test_a_call_can_be_changed_before_it_is_made() -> None:
    """
    Other arguments, or another tool in its place: the model is told under the name that it used.
    """

    def change(event: BeforeToolCall) -> None:
        if event.tool_use.name == "price":
            event.selected_tool = "stock"
            event.tool_use = event.tool_use.model_copy(update={"args": {"item": "coffee"}})

    answers = {"model": [calls("price", item="tea"), "ok"]}
    assert results(play(shop(plugins=[change]), "go", answers=answers, tools=TOOLS)) == [("price", 6, False)]


def test_the_person_is_shown_what_will_be_called() -> None:
    """
    Hooks come before the gate, so that nothing changes behind a grant.
    """

    def double(event: BeforeToolCall) -> None:
        event.tool_use = event.tool_use.model_copy(update={"args": {"item": "tea", "count": 2}})

    agent = shop(plugins=[double], gates=["buy"])
    story = play(agent, "go", reply("model", calls("buy", item="tea")), unfinished=True)

    assert story.view.waiting_for[0].show == {"tool": "buy", "arguments": {"item": "tea", "count": 2}}


def test_a_tools_result_can_be_changed_and_the_call_made_again() -> None:
    """
    A retry is another call; a changed result is what the model reads.
    """

    def look(event: AfterToolCall) -> None:
        event.retry = event.error is not None and event.attempt_count < 3
        event.result = event.result.model_copy(update={"value": f"seen: {event.result.value}"})

    answers = {"model": [calls("price", item="tea"), "ok"], "price": [permanent("no"), permanent("no"), 5]}
    story = play(shop(plugins=[look]), "go", answers=answers)

    assert results(story) == [("price", "seen: 5", False)]


def test_a_retried_call_needs_a_grant_of_its_own() -> None:
    """
    A grant is for one call.
    """

    def again(event: AfterToolCall) -> None:
        event.retry = event.attempt_count == 1

    wish = reply("model", calls("buy", item="tea"))
    script: list[Any] = [
        wish,
        approve("buy"),
        reply("buy", "1"),
        approve("buy"),
        reply("buy", "2"),
        reply("model", "ok"),
    ]

    assert results(play(shop(plugins=[again], gates=["buy"]), "go", script)) == [("buy", "2", False)]


def test_a_plugin_brings_tools() -> None:
    """
    They are the agent's own like those it was given.
    """

    class Prices(Plugin):
        tools = (price,)

    answers = {"model": [calls("price", item="tea"), "ok"]}
    assert results(play(shop(tools=[], plugins=[Prices()]), "go", answers=answers, tools=TOOLS)) == [
        ("price", 300, False)
    ]


def test_a_hook_may_await_and_keep_things() -> None:
    """
    An async hook awaits calls of the context; what it keeps in `app` is JSON, copied in and out, and goes with the
    task.
    """

    async def note(event: AfterTools) -> None:
        assert isinstance(event.results[0], ToolReturn)
        seen = event.state.app.get("seen", [])
        assert isinstance(seen, list)
        seen.append(await event.ctx.tool("stock", item="tea"))
        event.state.app.set("seen", seen)
        seen.append("nobody sees this")

    answers = {"model": [calls("price", item="tea"), calls("price", item="tea"), "ok"]}
    story = play(shop(plugins=[note]), "go", answers=answers, tools=TOOLS, cut=True)

    assert _app(story) == {"seen": [3, 3]}


def test_instructions_model_and_tools_change_by_name() -> None:
    """
    A hook may write them to the state: from the next model step on they count, for this task.
    """

    def upgrade(event: AfterTools) -> None:
        event.state.instructions, event.state.model, event.state.tools = "Be brief.", "scripted:slow", ["stock"]

    answers = {"model": [calls("price", item="tea"), calls("price", item="tea"), "ok"]}
    story = play(shop(plugins=[upgrade]), "go", answers=answers, tools=TOOLS)
    frame = next(one.frame for one in story.asked[1:] if isinstance(one, CallChat))
    assert frame is not None

    assert (frame.instructions, frame.model, [tool.name for tool in frame.tools]) == (
        "Be brief.",
        "scripted:slow",
        ["stock"],
    )
    assert results(story)[1] == ("price", "tool 'price' not found; there are: stock", True)


def _models(story: Played) -> list[str]:
    """Which model each call asks, and whether it is told to be brief."""
    frames = [one.frame for one in story.asked if isinstance(one, CallChat)]
    return ["as before" if frame is None else f"{frame.model} {frame.instructions}" for frame in frames]


@pytest.mark.parametrize("kind", [BeforeModelCall, AfterModelCall])
def test_a_change_by_name_is_for_the_next_model_step(kind: type[HookEvent]) -> None:
    """
    Not for the call that the hook runs before, or has made again.
    """

    def upgrade(event: Any) -> None:
        event.state.instructions, event.state.model = "Be brief.", "scripted:slow"
        if isinstance(event, AfterModelCall):
            event.retry = event.reply is not None and event.reply.text == "bad"

    upgrade.__annotations__ = {"event": kind}
    bad = ["bad"] if kind is AfterModelCall else []
    story = play(shop(plugins=[upgrade], turns=2), "go", "more", answers={"model": [*bad, "good", "fine"]})

    assert _models(story) == [*["None Sell tea."] * (1 + len(bad)), "scripted:slow Be brief."]


def test_a_change_beside_the_main_conversation_is_for_that_one() -> None:
    """
    Until its step ends: the main conversation goes on as the agent says.
    """

    def upgrade(event: AfterTools) -> None:
        event.state.instructions, event.state.model = "Be brief.", "scripted:slow"

    loop = [Together(Repeat(Think(), Sequential()), name="views"), Think(), Sequential()]
    answers = {"model": [calls("price", item="a"), "100.", "ok"]}
    story = play(shop(plugins=[upgrade], loop=loop), "go", answers=answers, tools=TOOLS)

    assert _models(story) == ["None Sell tea.", "scripted:slow Be brief.", "None Sell tea."]


def _app(story: Played) -> Any:
    state: Any = story.snapshots[-2].state
    return state["args"]["state"]["app"]


def _plugin(name: str, method: Any) -> Plugin:
    return type("Hours", (Plugin,), {name: method})()  # type: ignore[no-any-return]


def untyped(self: Any, event: Any) -> None:
    event.cancel = "No."


def typed(self: Any, use: BeforeToolCall) -> None:
    use.cancel = "No."


@pytest.mark.parametrize(
    ("name", "method", "near"),
    [
        pytest.param("before_toolcall", untyped, "before_tool_call", id="an underscore"),
        pytest.param("beforeToolCall", lambda self, use: None, "before_tool_call", id="in capitals"),
        pytest.param("before_model", lambda self, use: None, "before_model_call", id="half a name"),
        pytest.param("message_add", untyped, "message_added", id="a letter"),
        pytest.param("before_invoke", untyped, "before_invocation", id="another word"),
        pytest.param("no_orders", typed, "before_tool_call", id="annotated, as a function is"),
    ],
)
def test_a_misspelt_hook_is_refused(name: str, method: Any, near: str) -> None:
    """
    Its veto would never run; the error names the hook that is nearest.
    """
    with pytest.raises(DefinitionError, match=f"Hours.{name} looks like a hook, .* write {near}, or _{name}"):
        shop(plugins=[_plugin(name, method)])


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param("after_hours", lambda self, now: now.hour > 18, id="a helper"),
        pytest.param("_before_toolcall", typed, id="a private one"),
        pytest.param("note", untyped, id="a helper of several hooks"),
        pytest.param("before_tool", lambda self: None, id="without a parameter"),
        pytest.param("before_tool_calls", lambda self, event, more: None, id="with two"),
    ],
)
def test_other_methods_of_a_plugin_are_no_hooks(name: str, method: Any) -> None:
    """
    A plugin may have helpers.
    """
    assert play(shop(plugins=[_plugin(name, method)]), "go", reply("model", "ok")).said == ("ok",)


# --- what one hook has raised


def _lowers(event: BeforeToolCall) -> None:
    event.cancel = False


def _vetoes(event: BeforeToolCall) -> None:
    event.cancel = "No money."


@CUT
@pytest.mark.parametrize("flag", [True, "No money."])
def test_no_later_hook_lifts_a_veto(cut: bool, flag: Any) -> None:
    """
    The effect is not made, whatever a hook after the one that vetoed it assigns.
    """

    def stop(event: BeforeToolCall) -> None:
        event.cancel = flag

    answers = {"model": [calls("buy", item="b"), "ok"]}
    story = play(shop(plugins=[stop, _lowers]), "go", answers=answers, tools=TOOLS, cut=cut)
    said = "This call was canceled." if flag is True else flag

    assert results(story) == [("buy", said, True)]


@pytest.mark.parametrize("kind", [BeforeInvocation, BeforeModelCall, BeforeTools, BeforeToolCall])
def test_every_veto_stays(kind: type[HookEvent]) -> None:
    """
    Of each event that has one.
    """

    def stop(event: Any) -> None:
        event.cancel = "No."

    def lift(event: Any) -> None:
        event.cancel = False

    stop.__annotations__ = lift.__annotations__ = {"event": kind}
    agent = shop(plugins=[stop, lift], max_cycles=2)
    story = play(agent, "go", answers={"model": lambda _: [calls("buy", item="b")]}, tools=TOOLS)

    assert "buy" not in [one.id for one in story.asked]


def test_a_retry_that_one_hook_wants_is_made() -> None:
    """
    Of a model call and of a tool call; hooks that come after something are called in reverse order.
    """

    def again(event: AfterModelCall) -> None:
        event.retry = event.reply is not None and event.reply.text == "bad"

    def enough(event: AfterModelCall) -> None:
        event.retry = False

    def twice(event: AfterToolCall) -> None:
        event.retry = event.attempt_count == 1

    def once(event: AfterToolCall) -> None:
        event.retry = False

    answers = {"model": [calls("price", item="tea"), "bad", "good"]}
    story = play(shop(plugins=[enough, again, once, twice]), "go", answers=answers, tools=TOOLS)

    assert [one.id for one in story.asked] == ["model", "price", "price", "model", "model"]
    assert story.said == ("good",)


def test_an_answer_is_followed_up_if_one_hook_wants_it() -> None:
    """
    A hook that has nothing to add does not end the work.
    """

    def again(event: AfterInvocation) -> None:
        event.resume = "Be sure." if event.reply.text == "maybe" else None

    def nothing(event: AfterInvocation) -> None:
        event.resume = None

    assert play(shop(plugins=[nothing, again]), "go", answers={"model": ["maybe", "yes"]}).said == ("yes",)


def test_a_hook_may_change_its_mind() -> None:
    """
    Until it returns, a flag is its own.
    """

    def wavers(event: BeforeToolCall) -> None:
        event.cancel = True
        event.cancel = False

    answers = {"model": [calls("price", item="a"), "ok"]}
    assert results(play(shop(plugins=[wavers]), "go", answers=answers, tools=TOOLS)) == [("price", 100, False)]


@pytest.mark.parametrize(
    ("name", "flag", "otherwise"), [("before_tool_call", "cancel", "False"), ("after_invocation", "resume", "None")]
)
def test_an_empty_text_raises_no_flag(name: str, flag: str, otherwise: str) -> None:
    """
    A veto without words would be none: the hook is told what to write.
    """

    def silent(self: Any, event: HookEvent) -> None:
        setattr(event, flag, "")

    wish = [] if flag == "resume" else [calls("buy", item="b")]
    story = play(shop(plugins=[_plugin(name, silent)]), "go", answers={"model": lambda _: wish or "ok"})
    event = "BeforeToolCall" if flag == "cancel" else "AfterInvocation"

    assert story.reason == (
        f"a hook wrote {event}.{flag} = '', an empty text; write a text that is not empty"
        f"{', or True' if flag == 'cancel' else ''}, or {otherwise} to leave it"
    )


@CUT
@pytest.mark.parametrize("hooks", [[_vetoes, _lowers], ["empty"]], ids=["lifted", "empty"])
def test_a_veto_that_was_lifted_before_stays_lifted_in_a_replay(cut: bool, hooks: Any) -> None:
    """
    A task that was recorded with the veto lifted, or empty, goes on as it was recorded.
    """

    def empty(event: BeforeToolCall) -> None:
        event.cancel = ""

    task = ByHand(shop(plugins=[empty if one == "empty" else one for one in hooks]), cut=cut, patched=lambda _: False)
    task.say()
    task.give("model", Reply(tool_calls=(ToolCall(id="1", name="buy", args={"item": "tea"}),), stop="tools"))
    task.give("buy", "1 tea")
    task.give("model", "ok")

    assert task.said == ["ok"]
    assert task.task.patches[RAISED_STAYS] is False
    assert task.folded() == task.task


def test_a_task_whose_hooks_lower_nothing_asks_for_no_patch() -> None:
    """
    Its history is as before.
    """
    task = ByHand(shop(plugins=[_lowers, _vetoes]), patched=lambda _: True)
    task.say()
    task.give("model", Reply(tool_calls=(ToolCall(id="1", name="buy", args={"item": "tea"}),), stop="tools"))

    assert RAISED_STAYS not in task.task.patches
