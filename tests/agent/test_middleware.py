"""Middleware stands around steps, in a fixed order, and may change, skip or repeat what they do."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from refold import CommandError, Content, RetryPolicy, Status, TaskState
from refold.agent import (
    AfterModelCall,
    Agent,
    BeforeModelCall,
    Block,
    Budget,
    Cache,
    Concurrent,
    Guardrail,
    LoopTurn,
    Middleware,
    RateLimit,
    Retryable,
    Spans,
    Step,
    StepStatus,
    Window,
    around,
)
from refold.agent.middleware import Wrapped
from refold.agent.steps import ModelReplied
from refold.conversation import LlmOutcome
from refold.core.chat import Frame, Reply, ToolCall, Usage, UserSaid
from refold.core.commands import AskApproval, CallChat, CallTool
from refold.effects.models.conversations import Recalled
from refold.middleware import ActivityTurn
from refold.testing import approve, calls, deny, permanent, play, reply, transient
from tests.agent.shop import TOOLS, replies, results, shop


def traced(name: str, pages: list[str], *steps: str) -> Middleware:
    @around(*steps)
    async def middleware(turn: Any, proceed: Callable[[Any], Any]) -> Any:
        pages.append(f"{name} in")
        result = await proceed(turn)
        pages.append(f"{name} out")
        return result

    return middleware


def test_the_order() -> None:
    """
    The agent's own, the first one outermost; then the built-in; the hooks before; the client; the hooks after.
    """
    pages: list[str] = []

    def before(event: BeforeModelCall) -> None:
        pages.append(f"hook before, after {len(event.state.trace)} spans")

    def after(event: AfterModelCall) -> None:
        pages.append(f"hook after, after {len(event.state.trace)} spans")

    class Client:
        async def ask(self, ctx: Any, question: Any) -> Reply:
            pages.append("client in")
            found: Reply = await ctx.chat("model", list(question.say), thread=question.thread)
            pages.append("client out")
            return found

    @around("model")
    async def span_seen(turn: Any, proceed: Callable[[Any], Any]) -> Any:
        result = await proceed(turn)
        pages.append(f"built-in out, {len(turn.state.trace)} span")
        return result

    middleware = [traced("a", pages, "model"), traced("b", pages, "model"), span_seen]
    agent = shop(middleware=middleware, plugins=[before, after], model_client=Client())
    play(agent, "go", reply("model", "ok"))

    assert pages == [
        *("a in", "b in", "hook before, after 0 spans", "client in"),
        *("client out", "hook after, after 0 spans", "built-in out, 1 span", "b out", "a out"),
    ]


def test_it_wraps_steps_by_their_kind() -> None:
    """
    The model, each tool, and the orchestrator of a batch.
    """
    pages: list[str] = []
    middleware = [traced(kind, pages, kind) for kind in ("tools", "tool", "model")]
    play(shop(middleware=middleware), "go", answers={"model": [calls("price", item="a"), "ok"]}, tools=TOOLS)

    assert pages == [
        *("model in", "model out", "tools in", "tool in", "tool out", "tools out"),
        *("model in", "model out"),
    ]


def test_it_can_put_another_reply_in_the_models_place() -> None:
    """
    The user reads the other one; the model remembers what it said.
    """

    @around("model")
    async def loud(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        found: Reply = await proceed(turn)
        return found.model_copy(update={"text": found.text.upper()})

    story = play(shop(middleware=[loud]), "go", reply("model", "quiet"))

    assert (story.said, replies(story)) == (("QUIET",), ["quiet"])


@pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])
def test_whatever_it_does_to_tool_calls_the_conversation_stays_whole(cut: bool) -> None:
    """
    A call that it drops has a result all the same; one that it adds is the model's own from then on.
    """

    @around("model")
    async def drops(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        found: Reply = await proceed(turn)
        return found.model_copy(update={"tool_calls": found.tool_calls[:1]})

    @around("model")
    async def adds(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        found: Reply = await proceed(turn)
        more = ToolCall(id="mine", name="stock", args={"item": "tea"})
        return found.model_copy(update={"tool_calls": (*found.tool_calls, more) if turn.state.cycle == 1 else ()})

    wish = [calls("price", item="a"), calls("price", item="bb")]
    dropped = play(shop(middleware=[drops]), "go", answers={"model": [wish, "ok"]}, tools=TOOLS, cut=cut)
    added = play(shop(middleware=[adds]), "go", answers={"model": [wish[:1], "ok"]}, tools=TOOLS, cut=cut)

    assert results(dropped) == [("price", "not called", True), ("price", 100, False)]
    assert results(added, "main~2") == [("price", 100, False), ("stock", 3, False)]


def test_it_can_skip_a_step() -> None:
    """
    Nothing is asked; the conversation holds what was said in the model's place.
    """

    @around("model")
    async def canned(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        if turn.state.turns == 1:
            return Reply(text="canned")
        found: Reply = await proceed(turn)
        return found

    story = play(shop(middleware=[canned], turns=2), "one", "two", reply("model", "real"))

    assert (story.said, replies(story)) == (("canned", "real"), ["canned", "real"])


def test_it_can_take_a_step_again() -> None:
    """
    The reply that it did not want is forgotten.
    """

    @around("model")
    async def twice(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        await proceed(turn)
        found: Reply = await proceed(turn)
        return found

    story = play(shop(middleware=[twice]), "go", answers={"model": ["first", "second"]})

    assert (story.said, replies(story, "main~2")) == (("second",), ["second"])


def test_what_it_adds_to_what_is_said_is_forgotten_too() -> None:
    """
    A step that is taken again after middleware has said more to the model says nothing twice.
    """

    @around("model")
    async def adds(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        await proceed(replace(turn, say=(*turn.say, UserSaid(content=Content.from_text("In French.")))))
        found: Reply = await proceed(turn)
        return found

    story = play(shop(middleware=[adds]), "go", answers={"model": ["oui", "yes"]})
    said = story.snapshot.threads["main~2"].said

    assert [getattr(one, "text", "") or one.content.text for one in said] == ["go", "yes"]  # type: ignore[union-attr]


def test_it_sees_what_a_step_emits() -> None:
    """
    A middleware wraps `stream`: events pass through it, and it may keep or change them.
    """
    seen: list[object] = []

    class Listens(Middleware):
        steps = ("model",)

        def wrap(self, step: Step[Any, Any]) -> Step[Any, Any]:
            class Listening(Wrapped):
                async def stream(self, turn: Any, emit: Any) -> Any:
                    def hear(event: object) -> None:
                        seen.append(event)
                        emit(event)

                    return await step.stream(turn, hear)

            async def unused(turn: Any, proceed: Any) -> Any:
                return await proceed(turn)

            return Listening(step, unused)

    play(shop(middleware=[Listens()]), "go", reply("model", "ok"))

    assert isinstance(seen[-1], ModelReplied)


# --- built in


def test_each_step_leaves_a_span() -> None:
    """
    With its time by the task's clock, and its error; the newest ones are kept.
    """
    answers = {"model": [[calls("price", item="a"), calls("nix")], "ok"], "price": [transient("busy"), 5]}
    story = play(shop(), "go", answers=answers)
    state: Any = story.snapshots[-2].state
    spans = state["args"]["state"]["trace"]

    assert [(span["step"], span["took_s"], "error" in span) for span in spans] == [
        ("model", 0.0, False),
        ("tool price", 1.0, False),
        ("tool nix", 0.0, True),
    ]


@pytest.mark.parametrize(
    ("agents", "declared", "asked"),
    [
        pytest.param(None, None, 4, id="by default"),
        pytest.param(RetryPolicy(max_retries=1), None, 2, id="the agent's"),
        pytest.param(RetryPolicy(max_retries=1), RetryPolicy(max_retries=2), 3, id="the step's own"),
    ],
)
def test_one_layer_retries(agents: RetryPolicy | None, declared: RetryPolicy | None, asked: int) -> None:
    """
    Middleware declares, the task retries: what fails is tried as often as one policy says, not two.
    """
    tries: list[str] = []

    def busy(command: Any) -> Any:
        tries.append(command.id)
        return transient("busy")

    middleware = [Retryable(declared)] if declared else []
    story = play(shop(retry=agents, middleware=middleware), "go", answers={"model": busy})

    assert (len(tries), story.status) == (asked, Status.FAILED)
    assert story.lifecycle.count(TaskState.RETRYING) >= 1


# --- ready made


def test_a_rate_limit_waits_by_a_durable_timer() -> None:
    """
    Two a second: the second call within it waits half a second, of the task's own time.
    """
    agent = shop(middleware=[RateLimit(2, steps=("tool",))], orchestrator=Concurrent())
    wish = [calls("price", item="a"), calls("price", item="b"), calls("price", item="c")]
    story = play(agent, "go", answers={"model": [wish, "ok"]}, tools=TOOLS, cut=True)
    sleeps = [one.seconds for one in story.asked if one.kind == "sleep"]

    assert sleeps == pytest.approx([0.5, 1.0])
    assert [value for _, value, _ in results(story)] == [100, 100, 100]
    with pytest.raises(ValueError, match="give a positive number"):
        RateLimit(0)


def test_a_cache_answers_the_same_question_once() -> None:
    """
    A hit skips the tool; another question does not hit, and a failure is not kept.
    """
    wishes = [*[calls("price", item="a")] * 3, calls("price", item="bb")]
    answers = {"model": [*wishes, "ok"], "price": [permanent("no"), 1, 2]}
    story = play(shop(middleware=[Cache(tools=["price"])]), "go", answers=answers, cut=True)

    assert [(value, failed) for _, value, failed in results(story)] == [
        ("no", True),
        (1, False),
        (1, False),
        (2, False),
    ]


def test_a_cache_of_replies() -> None:
    """
    The model is asked once for the same conversation; other words are another question.
    """

    @around("model")
    async def forgets(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        turn.state.thread = f"turn{turn.state.turns}"
        turn.state.unsaid = []
        found: Reply = await proceed(turn)
        return found

    agent = shop(middleware=[forgets, Cache(models=True)], turns=3)
    story = play(agent, "same", "same", "other", answers={"model": ["1", "2"]})

    assert story.said == ("1", "1", "2")


def test_a_call_that_cannot_be_read_is_not_cached() -> None:
    """
    It has no arguments, as a right call may have none; the model reads what was wrong.
    """
    unreadable = ToolCall(id="2", name="price", problem="the arguments are not JSON")
    answers = {"model": [calls("price"), unreadable, "Done."], "price": 9}
    story = play(
        Agent("teller", tools=["price"], gates="none", middleware=[Cache(tools=["price"])]), "go", answers=answers
    )

    assert results(story) == [
        ("price", 9, False),
        ("price", "the arguments cannot be read: the arguments are not JSON", True),
    ]


def test_a_cache_of_replies_in_another_form() -> None:
    """
    The same words, with another type to be answered in, are another question.
    """

    async def both(turn: LoopTurn) -> StepStatus:
        said = await turn.ask("Is it right?", thread="said")
        known = await turn.ask("Is it right?", thread="known", expect=bool)
        return turn.answer(f"{said.text} {known.value}")

    story = play(shop(middleware=[Cache(models=True)], loop=[both]), "go", answers={"model": ["Yes.", True]})

    assert story.said == ("Yes. True",)


@pytest.mark.parametrize(
    ("answer", "again"),
    [
        pytest.param(
            Reply(text="Yes.", model="openai:gpt-4o", usage=Usage(input_tokens=9, usd=1.0)),
            Reply(text="Yes.", usage=Usage(requests=0)),
            id="in a conversation",
        ),
        pytest.param(
            LlmOutcome(value="Yes.", model="openai:gpt-4o", usage=Usage(input_tokens=9, usd=1.0)),
            LlmOutcome(value="Yes."),
            id="outside of one",
        ),
    ],
)
async def test_what_a_worker_has_cached_is_not_paid_for_again(answer: Any, again: Any) -> None:
    """
    It has no model and no usage, so that neither a budget nor the task's cost counts it.
    """
    cache = Cache(models=True, scope="activity")
    turn = ActivityTurn(command={"prompt": "Right?"}, task_id="T", invocation_id="T/1.1", attempt=1)

    async def perform(turn: ActivityTurn) -> Any:
        return answer

    assert [await cache.around(turn, perform) for _ in range(2)] == [answer, again]


async def test_a_worker_knows_a_conversation_again() -> None:
    """
    By what the model is sent: the second task's first reply is from the cache, and so without a model and its usage.
    """
    cache = Cache(models=True, scope="activity")
    made: list[int] = []

    async def perform(turn: ActivityTurn) -> Reply:
        made.append(len(turn.command.prior))
        return Reply(text="Yes.", model="openai:gpt-4o", usage=Usage(input_tokens=9))

    for _ in range(2):
        said: tuple[Any, ...] = ()
        for text in ("Right?", "Really?"):
            new = UserSaid(content=Content.from_text(text))
            command = Recalled(prior=said, say=(new,), frame=Frame(), since=0)
            turn = ActivityTurn(command=command, task_id="T", invocation_id="T/1.1", attempt=1)
            said = (*said, new, await cache.around(turn, perform))

    assert made == [0, 2]


async def test_a_worker_knows_a_call_again_among_others() -> None:
    """
    By its tool and arguments: two calls of one tool in a reply have ids of their own in the task.
    """
    cache = Cache(tools=["price"], scope="activity")
    made: list[Any] = []

    async def perform(turn: ActivityTurn) -> int:
        made.append(turn.command.args["item"])
        return len(made)

    for id, item in (("price", "tea"), ("price.2", "milk"), ("price", "milk"), ("price.2", "tea")):
        command = CallTool(id=id, name="price", args={"item": item})
        await cache.around(ActivityTurn(command=command, task_id="T", invocation_id="T/1.1", attempt=1), perform)

    assert made == ["tea", "milk"]


async def test_equal_calls_at_once_are_made_once() -> None:
    """
    Those that come while one is made wait for it, and each is given a result of its own. If it fails, the next of them
    makes the call.
    """
    cache = Cache(tools=["price"], scope="activity")
    made: list[str] = []

    async def perform(turn: ActivityTurn) -> list[str]:
        made.append(turn.task_id)
        await asyncio.sleep(0)
        if turn.task_id == "A":
            raise LookupError("no price")
        return [turn.task_id]

    async def ask(task_id: str) -> Any:
        command = CallTool(id="price", name="price", args={"item": "tea"})
        turn = ActivityTurn(command=command, task_id=task_id, invocation_id="T/1.1", attempt=1)
        found = await cache.around(turn, perform)
        found.append(task_id)
        return found

    found = await asyncio.gather(*(ask(task_id) for task_id in "ABCD"), return_exceptions=True)

    assert made == ["A", "B"]
    assert [repr(found[0]), *found[1:]] == ["LookupError('no price')", ["B", "B"], ["B", "C"], ["B", "D"]]


async def test_a_worker_caches_a_servers_tool() -> None:
    """
    By the name that the model uses, whichever definition of it the task has seen; the name may hold an `@` of its own.
    """
    cache = Cache(tools=["files__search", "files__at@home"], scope="activity")
    made: list[str] = []

    async def perform(turn: ActivityTurn) -> str:
        made.append(turn.command.name)
        return "found"

    one, other = "5f0c1b2a3d4e5f60", "77aa1b2a3d4e5f60"
    again = [f"files.search@{one}", f"files.search@{other}", "files.at@home"]
    each = [f"files.list@{one}"]
    for name in (name for name in (*again, *each) for _ in range(2)):
        command = CallTool(id="find", name=name)
        turn = ActivityTurn(command=command, task_id="T", invocation_id="T/1.1", attempt=1)
        assert await cache.around(turn, perform) == "found"

    assert made == [*again, *each, *each]


def test_a_guardrail_blocks() -> None:
    """
    It fails the task, with its name and reason; or says something else in the reply's place.
    """

    def no_cards(text: str) -> Block | None:
        return Block("a card number") if "4111" in text else None

    fails = play(shop(middleware=[Guardrail(no_cards, name="cards")]), "go", reply("model", "4111 1111"))
    hides = play(shop(middleware=[Guardrail(no_cards, instead="[hidden]")]), "go", reply("model", "4111 1111"))
    passes = play(shop(middleware=[Guardrail(lambda _: "pass")]), "go", reply("model", "fine"))

    assert fails.reason == "guardrail 'cards' blocked: a card number"
    assert (hides.said, passes.said) == (("[hidden]",), ("fine",))


def test_a_guardrail_on_what_is_said_and_on_results() -> None:
    """
    What the model is not to be told it is not told; a guardrail may ask a model itself.
    """

    async def judged(text: str, turn: Any) -> Any:
        return await turn.ctx.llm("judge", "pass or block?", text)

    said = play(shop(middleware=[Guardrail(judged, on="said", instead="No.")]), "evil", reply("judge", "block"))
    secret = shop(middleware=[Guardrail(lambda text: "block", on="result", instead="secret")])
    hidden = play(secret, "go", answers={"model": [calls("price", item="a"), "ok"]}, tools=TOOLS)

    assert (said.said, "main" in said.snapshot.threads) == (("No.",), False)
    assert results(hidden) == [("price", "secret", True)]


def test_what_was_blocked_stays_out_of_the_conversation() -> None:
    """
    The model is not told of it with a later message either; a tool call keeps a result.
    """
    no_secrets = Guardrail(lambda text: "block" if "secret" in text else None, on="said", instead="No.")
    agent = shop(middleware=[no_secrets], turns=3)
    answers = {"model": [calls("price", item="a"), "Hi."], "price": "secret"}
    story = play(agent, "my secret", "price?", "bye", answers=answers)
    told = story.snapshot.threads["main"].said

    assert story.said == ("No.", "No.", "Hi.")
    assert [one.content.text for one in told if isinstance(one, UserSaid)] == ["(withheld)", "price?", "bye"]
    assert results(story) == [("price", "(withheld)", True)]


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        pytest.param(Budget(model_calls=2), "the budget of 2 model_calls is used up: 2 spent", id="model calls"),
        pytest.param(Budget(tool_calls=1), "the budget of 1 tool_calls is used up: 1 spent", id="tool calls"),
        pytest.param(Budget(tokens=100), "the budget of 100 tokens is used up: 120 spent", id="tokens"),
        pytest.param(Budget(usd=0.5), "the budget of 0.5 usd is used up: 0.6 spent", id="money"),
    ],
)
def test_a_budget_ends(budget: Budget, reason: str) -> None:
    """
    The step that goes over it is the last; the task says what was spent, and the way out.
    """
    wish = Reply(tool_calls=(ToolCall(id="1", name="price", args={"item": "a"}),), usage=_usage(60))
    story = play(shop(middleware=[budget]), "go", answers={"model": wish}, tools=TOOLS)

    assert story.reason == f"{reason}; raise it, and recover the task"


@pytest.mark.parametrize(("model", "ended"), [("openai:own", True), ("scripted:demo", False), ("", False)])
def test_a_budget_in_money_needs_a_price(model: str, ended: bool) -> None:
    """
    Without one it would bound nothing; the scripted model is free, and a cached reply costs nothing.
    """
    story = play(shop(middleware=[Budget(usd=0.5)]), "go", answers={"model": Reply(text="ok", model=model)})

    assert story.reason.startswith("the budget in usd cannot be kept: no price is known") is ended
    assert (story.said == ("ok",)) is not ended


def test_a_failed_call_is_counted_if_it_was_paid() -> None:
    """
    A cut or filtered answer has cost what it has cost.
    """
    counted: list[int] = []

    def again(event: AfterModelCall) -> None:
        counted.append(event.state.spent.output_tokens)
        event.retry = event.error is not None

    failure = permanent("cut off", type="length").model_copy(update={"details": {"usage": {"output_tokens": 99}}})
    story = play(shop(plugins=[again]), "go", reply("model", failure), reply("model", "ok"))

    assert (story.said, counted) == (("ok",), [99, 99])


def _usage(tokens: int) -> Any:
    return Reply.model_validate({"usage": {"input_tokens": tokens, "usd": 0.3}}).usage


def test_a_budget_may_be_raised_by_a_person() -> None:
    """
    Asked at a gate of the kind `budget`: a grant is for as much again, a denial ends the task.
    """
    agent = shop(middleware=[Budget(model_calls=1, when_spent="ask")])
    answers = {"model": [calls("price", item="a"), calls("price", item="b"), "ok"]}
    story = play(agent, "go", approve("budget"), approve("budget"), answers=answers, tools=TOOLS)
    ended = play(agent, "go", deny("budget", by="Ann"), answers={"model": calls("price", item="a")}, tools=TOOLS)
    gate = next(one for one in story.asked if isinstance(one, AskApproval))

    assert story.said[-1] == "ok"
    assert gate.show == {"budget": "model_calls", "limit": 1, "spent": 1}
    assert ended.reason.startswith("approval_denied by Ann")


def test_a_budget_holds_for_calls_side_by_side() -> None:
    """
    However many tools the model wants at once, no more are called than the budget has.
    """
    wish = [calls("price", item=item) for item in "abcdef"]
    agent = shop(middleware=[Budget(tool_calls=2), RateLimit(1, steps=("tool",))], orchestrator=Concurrent())
    story = play(agent, "go", answers={"model": [wish]}, tools=TOOLS)

    assert story.reason.startswith("the budget of 2 tool_calls is used up: 2 spent")
    assert sum(isinstance(one, CallTool) for one in story.asked) <= 2


def test_a_grant_is_for_what_was_asked() -> None:
    """
    As much again of one budget leaves the others as they were.
    """
    agent = shop(middleware=[Budget(model_calls=1, when_spent="ask"), Budget(tool_calls=1)])
    answers = {"model": [calls("price", item="a"), calls("price", item="b")]}
    story = play(agent, "go", approve("budget"), answers=answers, tools=TOOLS)

    assert story.reason == "the budget of 1 tool_calls is used up: 1 spent; raise it, and recover the task"


def test_a_window_shows_the_newest_turns() -> None:
    """
    From something that the user said on, so that no tool result stands without its call; the thread keeps everything.
    """
    answers = {"model": ["1", calls("price", item="a"), "2", "3"]}
    story = play(shop(middleware=[Window(3)], turns=3), "one", "two", "three", answers=answers, tools=TOOLS)
    since = [one.since for one in story.asked if isinstance(one, CallChat)]

    assert since == [0, 0, 2, 2]
    assert sum(isinstance(one, UserSaid) for one in story.snapshot.threads["main"].said) == 3


def test_a_window_shows_all_that_is_new() -> None:
    """
    Also the question, however much is said beside the results of tools, such as what is left of the budget.
    """
    answers = {"model": ["0", calls("price", item="a"), calls("price", item="b"), "1"]}
    agent = shop(middleware=[Budget(model_calls=5, tell=True), Window(1)], turns=2)
    story = play(agent, "zero", "one", answers=answers, tools=TOOLS)
    said = story.snapshot.threads["main"].said
    begun = ["user", "user", "reply", "user", "user", "reply"]

    assert [one.kind for one in said] == [*begun, "return", "user", "reply", "return", "user", "reply"]
    assert [one.since for one in story.asked if isinstance(one, CallChat)] == [0, 3, 3, 3]


def test_a_window_shows_the_same_when_a_step_is_taken_again() -> None:
    """
    A reply that middleware around it does not want is no turn of the conversation any more.
    """

    @around("model")
    async def twice(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        await proceed(turn)
        found: Reply = await proceed(turn)
        return found

    story = play(shop(middleware=[twice, Window(1)], turns=2), "zero", "one", answers={"model": ["a", "b", "c", "d"]})

    assert story.said == ("b", "d")
    assert [one.since for one in story.asked if isinstance(one, CallChat)] == [0, 0, 2, 2]


def test_a_failure_passes_through() -> None:
    """
    Middleware may catch what a step raises.
    """

    @around("model")
    async def sorry(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        try:
            found: Reply = await proceed(turn)
        except CommandError as error:
            return Reply(text=f"Sorry: {error.failure.message}")
        return found

    assert play(shop(middleware=[sorry]), "go", answers={"model": permanent("no key")}).said == ("Sorry: no key",)


async def test_a_tracer_is_told_of_each_call() -> None:
    """
    A span for each try, with the ids of the journal; what the call raises leaves through it.
    """
    spans: list[tuple[str, dict[str, Any]]] = []

    class Fake:
        @contextmanager
        def start_as_current_span(self, name: str, *, attributes: Any) -> Iterator[None]:
            spans.append((name, attributes))
            yield

    async def perform(turn: ActivityTurn) -> str:
        return str(turn.command)

    middleware = Spans(Fake())
    command = CallTool(id="price", name="price")
    turn = ActivityTurn(command=command, task_id="T", invocation_id="T/1.1", attempt=2)
    await middleware.around(turn, perform)

    ids = {"refold.task_id": "T", "refold.invocation_id": "T/1.1", "refold.attempt": 2}
    assert spans == [("tool price", ids)]
    assert shop(middleware=[middleware]).options.middleware == (middleware,)


def test_instructions_are_nobody_elses() -> None:
    """
    What the outside is told of an agent is what its author says of it.
    """
    assert "Sell" not in shop().options.card.model_dump_json()
