"""A guard guards the stream: nothing that middleware may still change or refuse is shown before it has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from refold import CommandError, Content, Part, SkillError
from refold.agent import (
    AfterModelCall,
    AfterToolCall,
    Agent,
    BeforeInvocation,
    BeforeToolCall,
    Block,
    Budget,
    Cache,
    Guardrail,
    LoopTurn,
    Plugin,
    RateLimit,
    Step,
    StepStatus,
    Think,
    Window,
    around,
)
from refold.agent.clients import Commands
from refold.agent.middleware import Held
from refold.core.chat import Reply, ToolCall, ToolReturn, UserSaid
from refold.core.retry_policy import FailureKind
from refold.effects.middleware import MiddlewareBySkill
from refold.middleware import ActivityTurn, CallPiece, ProgressPiece, TextPiece
from refold.testing import play, reply
from tests.agent.shop import replies, shop

CARD = "4111 1111 1111 1111"
TURN = ActivityTurn(command=None, task_id="T1", invocation_id="T1/1.0", attempt=1)


def no_cards(text: str) -> Block | None:
    """Blocks a text with a card's number."""
    return Block("a card's number") if "4111" in text else None


async def passing(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Nobody knows what it does to a reply."""
    return await proceed(turn)


unknown = around("model")(passing)


@around("model", streams=True)
async def harmless(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Says that it changes nothing."""
    return await proceed(turn)


def again(event: AfterModelCall) -> None:
    """May discard a reply."""


class Watching(Plugin):
    """Says that it discards nothing."""

    streams = True

    def after_model_call(self, event: AfterModelCall) -> None:
        """Looks."""


class Client:
    """A client of the user's own."""

    async def ask(self, ctx: Any, question: Any) -> Any:
        """Asks nobody."""


async def shown(agent: Agent, said: str, reply: Reply | None = None) -> tuple[list[Any], Any]:
    """The pieces of a reply that a watcher sees, and the reply that is recorded, as a worker makes the call."""
    pieces: list[Any] = []

    async def perform(_: Any, emit: Callable[[Any], None]) -> Reply:
        for start in range(0, len(said), 7):
            emit(TextPiece(said[start : start + 7]))
        emit(CallPiece(0, "buy", '{"item": "4111"}'))
        return reply or Reply(text=said)

    middleware = MiddlewareBySkill({"shop": agent.options.middleware})
    recorded = await middleware.perform("shop", "model", TURN, pieces.append, perform)
    return pieces, recorded


def texts(pieces: list[Any]) -> list[str]:
    return [piece.text for piece in pieces if isinstance(piece, TextPiece)]


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        pytest.param({}, True, id="nothing"),
        pytest.param({"middleware": [harmless, Budget(tokens=9), Window(9), RateLimit(9)]}, True, id="harmless"),
        pytest.param({"middleware": [Cache(models=True), Guardrail(no_cards, on="said")]}, True, id="before the call"),
        pytest.param({"middleware": [unknown]}, False, id="middleware"),
        pytest.param({"middleware": [harmless, unknown]}, False, id="one of two"),
        pytest.param({"middleware": [around("tool")(passing)]}, False, id="around tools"),
        pytest.param({"middleware": [around("model", scope="activity")(passing)]}, False, id="in the worker"),
        pytest.param({"middleware": [Guardrail(lambda text, turn: None)]}, False, id="a guard that needs the turn"),
        pytest.param({"plugins": [again]}, False, id="a hook that may discard"),
        pytest.param({"plugins": [Watching()]}, True, id="a hook that does not"),
        pytest.param({"model_client": Client()}, False, id="a client"),
    ],
)
async def test_what_may_be_changed_is_not_shown(options: dict[str, Any], streams: bool) -> None:
    """
    Neither text nor arguments, unless all that stands around the call says that it changes nothing of them.
    """
    pieces, recorded = await shown(shop(**options), "One. Two.")

    assert bool(pieces) is streams
    assert any(isinstance(piece, CallPiece) for piece in pieces) is streams
    assert recorded == Reply(text="One. Two.")


async def test_a_guarded_reply_is_not_shown_and_not_recorded() -> None:
    """
    What is blocked is replaced in the worker, with its calls, files and reasoning; that its provider made a call stays
    recorded, without the arguments. A reply that passes is as it was.
    """
    agent = shop(middleware=[Guardrail(no_cards, instead="I cannot say.")])
    calls = (ToolCall(id="1", name="buy", args={"item": "4111"}),)
    blocked = Reply(
        text=f"It is {CARD}.",
        tool_calls=calls,
        files=(Part(raw=CARD.encode(), filename="card.txt"),),
        aside=({"thinking": {"content": CARD}},),
        stop="tools",
        provider_calls=(ToolCall(id="2", name="web_search", args={"query": CARD}),),
    )
    pieces, recorded = await shown(agent, blocked.text, blocked)

    assert pieces == []
    assert recorded == Reply(text="I cannot say.", provider_calls=(ToolCall(id="2", name="web_search", args={}),))
    assert await shown(agent, "Fine.") == ([], Reply(text="Fine."))


async def test_a_guard_by_the_sentence() -> None:
    """
    Each sentence is shown when the text up to its end has passed; what is blocked is not, and nothing after it.
    """
    agent = shop(middleware=[Guardrail(no_cards, instead="No.", by="sentence")])
    said = f"Your card is here. It is {CARD}. Good bye. And so on."
    pieces, recorded = await shown(agent, said)
    assert "".join(texts(pieces)) == "Your card is here. "
    assert len(pieces) == len(texts(pieces))
    assert recorded == Reply(text="No.")

    pieces, recorded = await shown(agent, "One. Two! Three")
    assert texts(pieces) == ["One. ", "Two! ", "Three"]
    assert recorded == Reply(text="One. Two! Three")


async def test_a_guard_with_nothing_to_say_instead() -> None:
    """
    Fails the call in the worker, so that only its usage and model are recorded; the task ends as it does in a test
    without a worker.
    """
    agent = shop(middleware=[Guardrail(no_cards, name="cards")])
    with pytest.raises(CommandError) as raised:
        await shown(agent, CARD, Reply(text=CARD, model="openai:gpt-4o"))
    failure = raised.value.failure
    failed = play(agent, "go", reply("model", failure))
    unworked = play(agent, "go", reply("model", CARD))

    assert (failure.kind, failure.message) == (FailureKind.PERMANENT, "guardrail 'cards' blocked: a card's number")
    assert "4111" not in failure.model_dump_json()
    assert isinstance(failure.details, dict)
    assert failure.details["model"] == "openai:gpt-4o"
    assert failed.reason == unworked.reason == "guardrail 'cards' blocked: a card's number"


async def test_two_guards() -> None:
    """
    What one of them blocks is shown by none.
    """
    loud = Guardrail(lambda text: "block" if "!" in text else "pass", instead="Hush.", by="sentence")
    agent = shop(middleware=[Guardrail(no_cards, instead="No.", by="sentence"), loud])

    assert await shown(agent, "One. Two! ") == ([TextPiece("One. ")], Reply(text="Hush."))
    assert await shown(agent, f"One. {CARD}. ") == ([TextPiece("One. ")], Reply(text="No."))


@pytest.mark.parametrize("verdict", [True, False, "no", 1])
def test_a_guard_that_answers_something_else(verdict: Any) -> None:
    """
    Is an error that names it: `True` would let everything pass.
    """
    story = play(shop(middleware=[Guardrail(lambda text: verdict, name="cards")]), "go", reply("model", "x"))

    assert f"guardrail 'cards': its function answered {verdict!r}; it answers \"pass\" or None" in story.reason
    with pytest.raises(SkillError):
        Guardrail(lambda text: verdict).judged("x")


def takes_words(text: str, words: str = "4111") -> Block | None:
    return Block() if words in text else None


def takes_turn(text: str, turn: Any = None) -> Block | None:
    return Block() if turn.state.cycle and "4111" in text else None


class Words:
    def __call__(self, text: str, *, words: str = "4111") -> Block | None:
        return takes_words(text, words)


@pytest.mark.parametrize(
    ("evaluate", "alone"),
    [
        pytest.param(takes_words, True, id="a default"),
        pytest.param(partial(takes_words, words="4111"), True, id="a parameter that has a value"),
        pytest.param(Words(), True, id="an object"),
        pytest.param(lambda *texts: takes_words(texts[0]), True, id="any number"),
        pytest.param(takes_turn, False, id="the turn with a default"),
        pytest.param(lambda text, at, words="4111": takes_words(text, words), False, id="a second parameter"),
    ],
)
def test_a_guards_function_receives_the_turn_if_it_takes_one(evaluate: Callable[..., Any], alone: bool) -> None:
    """
    A parameter with a default keeps it: the turn as `lenient` would let everything pass.
    """
    guard = Guardrail(evaluate, instead="No.")

    assert play(shop(middleware=[guard]), "go", reply("model", CARD)).said == ("No.",)
    assert (guard.in_worker is not None) is alone


class Slow:
    async def __call__(self, text: str) -> Block | None:
        return no_cards(text)


def hands_on(text: str) -> Any:
    return Slow()(text)


@pytest.mark.parametrize("evaluate", [Slow(), hands_on])
async def test_a_guards_function_that_is_awaited(evaluate: Callable[[str], Any]) -> None:
    """
    Is awaited by the task alone, also where nobody sees before the call that it is to be awaited.
    """
    agent = shop(middleware=[Guardrail(evaluate, instead="No.")])

    assert await shown(agent, CARD) == ([], Reply(text=CARD))
    assert play(agent, "go", reply("model", CARD)).said == ("No.",)
    assert play(agent, "go", reply("model", "Fine.")).said == ("Fine.",)


@pytest.mark.parametrize(
    "evaluate",
    [
        lambda: None,
        lambda text, turn, words: None,
        lambda text, *, words: None,
        lambda text, words="4111", turn=None: None,
        partial(takes_words, "text", "words"),
        "no cards",
    ],
)
def test_a_guards_function_that_cannot_be_called(evaluate: Any) -> None:
    """
    Is refused where the guardrail is made.
    """
    with pytest.raises(ValueError, match=r"neither as evaluate\(text\) nor as evaluate\(text, turn\)"):
        Guardrail(evaluate)


@pytest.mark.parametrize(
    "options",
    [
        {"by": "word"},
        {"by": "sentence", "on": "said"},
        {"by": "sentence", "evaluate": lambda text, turn: None},
        {"by": "sentence", "evaluate": Slow()},
    ],
)
def test_a_guard_that_cannot_be_by_the_sentence(options: dict[str, Any]) -> None:
    """
    Is refused where it is made.
    """
    with pytest.raises(ValueError, match="by="):
        Guardrail(**{"evaluate": no_cards, **options})


def test_what_holds_back_stands_outermost() -> None:
    """
    So that middleware of the worker still sees the text as it comes.
    """
    assert isinstance(shop(middleware=[unknown]).options.middleware[0], Held)


@around("tool")
async def unclear(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    return await proceed(turn)


@around("tool", streams=True)
async def open_minded(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    return await proceed(turn)


def changes(event: AfterToolCall) -> None:
    event.result = event.result


def watches(event: BeforeToolCall) -> None:
    assert event.tool_use.name


class Free(Commands):
    streams = True


@pytest.mark.parametrize(
    ("options", "held"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"middleware": [Cache(tools=["price"]), RateLimit(5)]}, False, id="ready-made"),
        pytest.param({"middleware": [Guardrail(lambda text: None)]}, False, id="guardrail-on-replies"),
        pytest.param({"middleware": [Guardrail(lambda text: None, on="result")]}, True, id="guardrail-on-results"),
        pytest.param({"middleware": [unclear]}, True, id="middleware"),
        pytest.param({"middleware": [open_minded]}, False, id="middleware-that-streams"),
        pytest.param({"plugins": [changes]}, True, id="after-tool-call"),
        pytest.param({"plugins": [watches]}, False, id="before-tool-call"),
        pytest.param({"tool_client": Commands()}, True, id="tool-client"),
        pytest.param({"tool_client": Free()}, False, id="tool-client-that-streams"),
    ],
)
def test_progress_of_a_result_that_may_still_change_is_not_shown(options: dict[str, Any], held: bool) -> None:
    """
    As with a model's text: what could be changed or refused afterwards is shown by nobody before.
    """
    around_it = [one for one in shop(**options).options.middleware if isinstance(one, Held) and "tool" in one.steps]

    assert bool(around_it) is held


async def test_a_held_report_reaches_nobody() -> None:
    """
    The tool reports, and the worker's middleware lets nothing out.
    """
    seen: list[object] = []

    class Reporting(Step[Any, Any]):
        kind = "tool"

        async def stream(self, turn: Any, emit: Any) -> Any:
            """Report."""
            emit(ProgressPiece("4111"))
            return 7

    assert await Held("tool").wrap(Reporting()).stream(None, seen.append) == 7
    assert seen == []


# --- all of a message, and every message


class Note(BaseModel):
    """A typed answer."""

    note: str


HERE, SECRET = "Here it is.", {"note": CARD}
TYPED = pytest.mark.parametrize(
    "found",
    [
        pytest.param(Reply(text=HERE, value=SECRET), id="in the value, beside text"),
        pytest.param(Reply(text=CARD, value={"note": ""}), id="in the text, beside a value"),
        pytest.param(Reply(value=SECRET), id="in the value alone"),
        pytest.param(Reply(text=CARD), id="in the text alone"),
    ],
)


@TYPED
async def test_all_of_a_reply_is_evaluated(found: Reply) -> None:
    """
    Its text and its value, in the worker and in the task: the user would receive both.
    """
    guard = Guardrail(no_cards, instead="No.")
    agent = shop(middleware=[guard])
    alone = shop(middleware=[Guardrail(lambda text, turn: no_cards(text), instead="No.")])

    assert await shown(agent, "", found) == ([], Reply(text="No."))
    assert play(agent, "go", reply("model", found)).said == play(alone, "go", reply("model", found)).said == ("No.",)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((Part(text=HERE), Part(data=SECRET)), id="data beside text"),
        pytest.param((Part(data=1), Part(data=SECRET)), id="a second piece of data"),
        pytest.param((Part(data=SECRET),), id="data alone"),
        pytest.param((Part(text=HERE), Part(text=CARD)), id="text"),
    ],
)
def test_all_of_a_users_message_is_evaluated(parts: tuple[Part, ...]) -> None:
    """
    Each part of text and of data: the model would read them all.
    """
    story = play(shop(middleware=[Guardrail(no_cards, on="said", instead="No.")]), Content(parts=parts))

    assert (story.said, story.asked) == (("No.",), ())


def closed(event: BeforeInvocation) -> None:
    """Answers the first message without the model."""
    event.cancel = "Closed." if event.state.turns == 1 else False


async def cards(turn: LoopTurn) -> StepStatus | None:
    """Answers the first message without the model."""
    return turn.answer("Closed.") if turn.state.turns == 1 else None


@around("model")
async def once(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Answers the first message without the model, before any guardrail."""
    return Reply(text="Closed.") if turn.state.turns == 1 else await proceed(turn)


ANSWERED = pytest.mark.parametrize(
    "options",
    [
        pytest.param({"plugins": [closed]}, id="by a hook"),
        pytest.param({"loop": [cards, Think()], "tools": []}, id="by a step"),
        pytest.param({"middleware": [once]}, id="by middleware"),
    ],
)


def guarded(options: dict[str, Any], *guards: Guardrail) -> Agent:
    return shop(**{**options, "turns": 2, "middleware": [*options.get("middleware", ()), *guards]})


@ANSWERED
def test_a_message_that_was_answered_without_the_model_is_evaluated(options: dict[str, Any]) -> None:
    """
    Before the model reads it with the next message, which goes on.
    """
    agent = guarded(options, Guardrail(no_cards, on="said", instead="No."))
    story = play(agent, CARD, "tea?", reply("model", "300."))
    told = story.snapshot.threads["main"].said

    assert (story.said, replies(story)) == (("Closed.", "300."), ["Closed.", "300."])
    assert [one.content.text for one in told if isinstance(one, UserSaid)] == ["(withheld)", "tea?"]


def test_a_result_that_was_answered_without_the_model_is_evaluated() -> None:
    """
    The call keeps a result.
    """

    async def told(turn: LoopTurn) -> StepStatus | None:
        if turn.state.turns > 1:
            return None
        turn.say.append(ToolReturn(id="1", name="price", value=CARD))
        return turn.answer("Closed.")

    agent = shop(loop=[told, Think()], tools=[], turns=2, middleware=[Guardrail(no_cards, on="said", instead="No.")])
    story = play(agent, "go", "tea?", reply("model", "300."))
    (found,) = [one for one in story.snapshot.threads["main"].said if isinstance(one, ToolReturn)]

    assert (found.id, found.value, found.failed) == ("1", "(withheld)", True)
