"""The loop: model, tools, model, until there is an answer."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from refold import Content, Ctx, DefinitionError, GatePolicy, Status, Transition, flow_skill, step, tool
from refold.agent import (
    AfterModelCall,
    Agent,
    BeforeToolCall,
    Budget,
    ByTool,
    Cache,
    Concurrent,
    Guardrail,
    LoopTurn,
    RateLimit,
    Sequential,
    StepStatus,
    Think,
    Together,
    Window,
    around,
    skill_tool,
)
from refold.agent.gates import TOOL_GATE, gates_of
from refold.agent.steps import TYPED_DUE
from refold.agent.tools import AgentTool
from refold.core.chat import Reply, ToolCall, ToolOffer, ToolReturn, Usage
from refold.core.commands import CallChat, CallSkill, CallTool
from refold.testing import approve, calls, check_laws, deny, fails, fires, permanent, play, reply, transient
from tests.agent.shop import TOOLS, price, results, shop, stock
from tests.core.byhand import ByHand
from tests.sweeps import examples

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


@BOTH
def test_with_a_tool(cut: bool) -> None:
    """
    The model asks for a tool, reads its result, and answers; what it is told is one conversation.
    """
    story = play(shop(), "tea?", answers={"model": [calls("price", item="tea"), "300 cents."]}, tools=TOOLS, cut=cut)

    assert (story.status, story.said) == (Status.COMPLETED, ("300 cents.",))
    assert results(story) == [("price", 300, False)]
    assert [command.id for command in story.asked] == ["model", "price", "model"]


@pytest.mark.parametrize("ids", [("a", "a"), ("a", "a", "a~1"), ("a~1", "a", "a", "a~1~")])
def test_each_call_has_its_result_whatever_ids_the_model_gives(ids: tuple[str, ...]) -> None:
    """
    Some models give calls of a reply the same id; the results come in the order of the calls, under the model's ids.
    """
    twins = [ToolCall(id=id, name="price", args={"item": "x" * n}) for n, id in enumerate(ids, 1)]
    agent = shop(orchestrator=Concurrent())
    story = play(agent, "go", answers={"model": [twins, "Done."]}, tools=TOOLS)
    said = story.snapshot.threads["main"].said

    assert [one.id for one in said if isinstance(one, ToolReturn)] == list(ids)
    assert [value for _, value, _ in results(story)] == [100 * n for n in range(1, len(ids) + 1)]


def test_without_a_tool() -> None:
    """
    A model that only talks is asked once.
    """
    story = play(shop(), "hello", reply("model", "Hello."))

    assert (story.said, len(story.asked)) == (("Hello.",), 1)


def test_what_the_model_is_told_beside_the_conversation() -> None:
    """
    Instructions, model, settings and the tools by their names: the worker knows the rest.
    """
    asked = play(shop(model="scripted:demo", settings={"temperature": 0}), "hi", reply("model", "x")).asked[0]
    assert isinstance(asked, CallChat)
    assert asked.frame is not None

    assert (asked.frame.instructions, asked.frame.model) == ("Sell tea.", "scripted:demo")
    assert [offer.name for offer in asked.frame.tools] == ["price", "stock", "buy"]
    assert asked.frame.settings == {"temperature": 0}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(calls("sell", item="tea"), "tool 'sell' not found; there are: price, stock, buy", id="unknown"),
        pytest.param(calls("price", thing="tea"), "it takes no thing and it needs item", id="arguments"),
        pytest.param(ToolCall(id="c1", name="price", problem="no JSON"), "cannot be read: no JSON", id="unreadable"),
    ],
)
def test_what_cannot_be_called_is_told_to_the_model(call: ToolCall, said: str) -> None:
    """
    Nothing is called, no exception ends the task, and the model may do better.
    """
    story = play(shop(), "go", reply("model", call), reply("model", "Sorry."))
    ((_, value, failed),) = results(story)

    assert said in value
    assert failed
    assert story.said == ("Sorry.",)


def test_a_tools_failure_is_data_for_the_model() -> None:
    """
    Once the task has tried again as often as its policy says, the model reads why.
    """
    answers = {
        "model": [[calls("price", item="tea"), calls("stock", item="tea")], "No luck."],
        "price": [transient("busy")] * 4,
    }
    story = play(shop(), "go", answers=answers, tools=[stock])

    assert results(story) == [("price", "busy", True), ("stock", 3, False)]
    assert story.said == ("No luck.",)


def test_a_fatal_tool_fails_the_task() -> None:
    """
    What is declared fatal ends the task, which can be recovered.
    """
    wish = calls("price", item="x")
    story = play(shop(fatal=["price"]), "go", reply("model", wish), fails("price", permanent("gone")))

    assert (story.status, story.reason) == (Status.FAILED, "price: gone")


@BOTH
def test_the_last_time_it_must_answer(cut: bool) -> None:
    """
    A model that never stops asking for tools is asked without a choice in the end.
    """
    answers = {"model": [calls("price", item="a"), calls("price", item="b"), "That is all."]}
    story = play(shop(max_cycles=3), "go", answers=answers, tools=TOOLS, cut=cut)
    frames = [one.frame for one in story.asked if isinstance(one, CallChat)]

    assert story.said == ("That is all.",)
    assert [frame and frame.settings for frame in frames] == [{}, None, {"tool_choice": "none"}]


@pytest.mark.parametrize(("text", "said"), [("Half.", ("Half.",)), ("", ())])
def test_a_model_that_will_not_answer(text: str, said: tuple[str, ...]) -> None:
    """
    What it says beside its last wish is the answer; if it says nothing, the task fails with the way out.
    """
    wish = Reply(text=text, tool_calls=(ToolCall(id="1", name="price"),), stop="tools")
    story = play(shop(max_cycles=1), "go", reply("model", wish))
    reason = "the model gave no answer in 1 cycles; raise max_cycles, or tell it when to stop"

    assert (story.said, story.reason) == (said, "" if said else reason)


class Quote(BaseModel):
    cents: int


HALF = Reply(text="Half.", tool_calls=(ToolCall(id="1", name="price", args={"item": "tea"}),), stop="tools")
TYPED = pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param({"max_cycles": 1}, "the model gave no answer in 1 cycles", id="last-cycle"),
        pytest.param({"loop": [Think(), Sequential()], "max_cycles": 1}, "the model gave no answer", id="own-loop"),
        pytest.param(
            {"middleware": [Budget(tokens=1, when_spent="answer")]}, "the budget of 1 tokens is used up", id="budget"
        ),
        pytest.param(
            {"middleware": [Budget(tokens=2, when_spent="answer"), Budget(tokens=1, when_spent="answer")]},
            "is used up",
            id="two-budgets",
        ),
    ],
)


def ends_with_half(task: ByHand) -> None:
    """The model's last reply says something and calls a tool."""
    task.say()
    task.give("model", HALF.model_copy(update={"usage": Usage(input_tokens=9)}))
    if "price" in task.out:
        task.give("price", 3)
    if "model" in task.out:
        task.give("model", HALF)


@BOTH
@TYPED
def test_a_text_beside_tool_calls_is_no_typed_answer(options: Any, says: str, cut: bool) -> None:
    """
    The task fails, and does not complete without its answer.
    """
    task = ByHand(shop(output=Quote, **options), cut=cut)
    ends_with_half(task)

    assert (task.status, task.said) == (Status.FAILED, [])
    assert says in task.reason
    assert task.folded() == task.task


@BOTH
@TYPED
def test_a_task_that_was_recorded_without_its_typed_answer_stays_completed(options: Any, says: str, cut: bool) -> None:
    """
    In a replay it ends as it was recorded.
    """
    task = ByHand(shop(output=Quote, **options), cut=cut, patched=lambda _: False)
    ends_with_half(task)

    assert (task.status, task.said) == (Status.COMPLETED, ["Half."])
    assert task.task.patches[TYPED_DUE] is False
    assert task.folded() == task.task


def test_a_step_that_does_not_answer_owes_no_typed_answer() -> None:
    """
    What it says beside its calls is for the steps after it.
    """
    loop = [Think(name="plan", tools=False, answers=False), Think(), Sequential()]
    story = play(shop(output=Quote, loop=loop), "go", answers={"model": [HALF, {"cents": 300}]})

    assert story.snapshot.artifacts[-1].parts[0].data == {"cents": 300}


@pytest.mark.parametrize("beside", [Think(name="plan", answers=False), Together(Think(name="plan"))], ids=repr)
def test_a_step_that_does_not_answer_owes_no_typed_answer_where_a_budget_is_used_up_either(beside: Any) -> None:
    """
    The steps after it go on with what it says.
    """

    async def end(turn: LoopTurn) -> StepStatus:
        return turn.answer({"cents": 300})

    budget = Budget(tokens=1, when_spent="answer")
    agent = shop(output=Quote, middleware=[budget], loop=[Think(answers=False), Sequential(), beside, end])
    first = HALF.model_copy(update={"usage": Usage(input_tokens=9)})
    story = play(agent, "go", answers={"model": [first, HALF]}, tools=TOOLS)

    assert story.snapshot.artifacts[-1].parts[0].data == {"cents": 300}


def test_a_typed_answer_is_owed_after_a_reply_that_was_discarded() -> None:
    """
    Where the conversation goes on in a copy.
    """

    def once_more(event: AfterModelCall) -> None:
        event.retry = event.attempt_count == 1

    agent = shop(output=Quote, plugins=[once_more], loop=[Think(), Sequential()], max_cycles=1)
    story = play(agent, "go", answers={"model": [HALF, HALF]})

    assert story.status == "failed"


def test_a_typed_answer() -> None:
    """
    The answer has the output's type: said as data, and handed over as the artifact `answer`.
    """
    answers = {"model": [calls("price", item="tea"), {"cents": 300}]}
    story = play(shop(output=Quote), "tea?", answers=answers, tools=TOOLS)

    assert story.artifacts == {"answer": {"cents": 300}}
    assert story.snapshot.messages[-1].content == Content.from_data({"cents": 300})


@BOTH
def test_a_task_of_several_messages(cut: bool) -> None:
    """
    After an answer it waits for the next message, in the same conversation, for as many as were said.
    """
    answers = {"model": ["1", "2", "3"]}
    story = play(shop(turns=3), "one", "two", "three", answers=answers, cut=cut)
    thread = story.snapshot.threads["main"].said

    assert [getattr(one, "text", "") or one.content.text for one in thread] == ["one", "1", "two", "2", "three", "3"]  # type: ignore[union-attr]  # no tools
    assert story.status is Status.COMPLETED


def test_it_stays_small() -> None:
    """
    A hundred cycles: each one frees what it received, so that the state is as large as at the beginning.
    """
    answers = {"model": [*[calls("price", item="tea")] * 99, "done"], "price": 1}
    story = play(shop(max_cycles=500), "go", answers=answers)
    sizes = [len(str(snapshot.state)) + len(str(snapshot.receipts)) for snapshot in story.snapshots[1:-1]]

    assert story.said == ("done",)
    assert max(sizes[-20:]) <= 1.1 * max(sizes[40:80])


# --- other skills as tools


class Question(BaseModel):
    city: str


@flow_skill(id="weather", input=Question, description="Tells the weather.")
class Weather:
    @step(start=True)
    async def begin(self, ctx: Ctx, question: Question) -> Transition:
        return ctx.complete(f"Sunny in {question.city}.")


HELPER = Agent("helper", instructions="Help with anything.")


def test_skills_are_tools() -> None:
    """
    Another skill is called as a task of its own, with its input's schema; an agent with a message.
    """
    agent = Agent("host", tools=[Weather, skill_tool(HELPER, name="ask_helper")], gates="none")
    wish = [calls("weather", city="Oslo"), calls("ask_helper", message="Why?"), calls("ask_helper", x=1)]
    answers = {"model": [wish, "ok"], "weather": "Sunny in Oslo.", "ask_helper": "Because."}
    story = play(agent, "go", answers=answers)
    asked = story.asked[0]
    assert isinstance(asked, CallChat)
    assert asked.frame is not None
    parameters = {offer.name: offer.parameters or {} for offer in asked.frame.tools}

    assert [one.input for one in story.asked if isinstance(one, CallSkill)] == [
        Content.from_data({"city": "Oslo"}),
        Content.from_text("Why?"),
    ]
    assert [value for _, value, _ in results(story)][:2] == ["Sunny in Oslo.", "Because."]
    assert parameters["weather"] == Question.model_json_schema()
    assert parameters["ask_helper"]["required"] == ["message"]


SEARCH = {
    "name": "files.search",
    "description": "Finds files.",
    "parameters": {"type": "object"},
    "effect": "read_only",
    "vouched_for": True,
    "pin": "5f",
}
ERASE = {"name": "files.erase", "parameters": {"type": "object"}, "effect": "at_most_once", "pin": "6a"}


@BOTH
def test_tools_of_a_server(cut: bool) -> None:
    """
    A task looks their definitions up when it begins, offers them by names that providers take, and calls them as they
    were then. What the server is not trusted with waits for a person.
    """
    wish = [calls("files__search", words="x"), calls("files__erase", path="y")]
    answers = {"files.tools/list": [[SEARCH, ERASE]], "files.search": ["found"], "files.erase": ["gone"]}
    story = play(
        Agent("host", tools=["files.*"]),
        "go",
        approve("files.erase"),
        answers={**answers, "model": [wish, "ok"]},
        cut=cut,
    )
    asked = [one for one in story.asked if isinstance(one, CallTool)]

    assert [one.name for one in asked] == ["files.tools/list", "files.search@5f", "files.erase@6a"]
    assert results(story) == [("files__search", "found", False), ("files__erase", "gone", False)]


def test_one_tool_of_a_server() -> None:
    """
    Named by itself it is the only one that is offered; one that is not there fails the task.
    """
    answers = {"files.tools/list": [[SEARCH, ERASE]], "model": ["ok"]}
    story = play(Agent("host", tools=["files.search"]), "go", answers=answers)
    chat = story.asked[-1]
    missing = play(Agent("host", tools=["files.read"]), "go", reply("files.tools/list", [SEARCH]))
    ungated = play(Agent("host", tools=["files.*"], gates=["files.erase"]), "go", reply("files.tools/list", [SEARCH]))

    assert isinstance(chat, CallChat)
    assert chat.frame is not None
    assert [(one.name, one.description) for one in chat.frame.tools] == [("files__search", "Finds files.")]
    assert missing.reason == "no server has a tool 'files.read'; there are: files.search"
    assert ungated.reason == "no server has a tool 'files.erase'; there are: files.search"


def test_a_typed_answer_fits_its_type() -> None:
    """
    Wherever it comes from: the worker has checked the model's, and middleware may put another in its place.
    """

    @around("model")
    async def doubled(turn: Any, proceed: Callable[[Any], Any]) -> Reply:
        found: Reply = await proceed(turn)
        return found.model_copy(update={"value": {"cents": "many"}})

    story = play(shop(output=Quote, middleware=[doubled]), "go", reply("model", {"cents": 3}))

    assert (story.view.status, "cents" in story.reason) == (Status.FAILED, True)


@BOTH
@pytest.mark.parametrize("count", [{}, {"count": 1}], ids=["default", "given"])
def test_equal_calls_have_one_key(cut: bool, count: dict[str, int]) -> None:
    """
    Whether the model gives an argument or leaves it at its default.
    """
    agent = shop(keys={"buy": "buy:{item}:{count}"})
    wish = calls("buy", item="tea", **count)
    story = play(agent, "go", answers={"model": [wish, "ok"]}, tools=TOOLS, cut=cut)

    assert [one.key for one in story.asked if isinstance(one, CallTool)] == ["buy:tea:1"]


# --- definition


def asks() -> AgentTool:
    return skill_tool(Agent("clerk"))


@flow_skill(id="total", input=list[int], description="Adds numbers up.")
class Total:
    @step(start=True)
    async def begin(self, ctx: Ctx, numbers: list[int]) -> Transition:
        return ctx.complete(str(sum(numbers)))


@tool(effect="at_most_once")
def mix(tint: Any = object) -> None:
    """Nobody can write its default."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"tools": [print]}, "declare it with @tool(effect=...)", id="no tool"),
        pytest.param({"tools": [Total]}, "input of skill 'total' is of type 'array'", id="no object"),
        pytest.param({"tools": [price, price]}, "two are named 'price'", id="twice"),
        pytest.param({"tools": ["a b"]}, "a tool's name has letters", id="name"),
        pytest.param({"gates": ["sell"]}, "there is no tool 'sell'; there are: price, stock, buy", id="gate"),
        pytest.param({"gates": "all"}, 'gates=\'all\' is unknown: "effects", "none"', id="gates"),
        pytest.param({"max_cycles": 0}, "the model is asked at least once", id="cycles"),
        pytest.param({"turns": 0}, "a task answers at least one message", id="turns"),
        pytest.param({"middleware": [print]}, "write a `Middleware`", id="middleware"),
        pytest.param({"plugins": [print]}, "annotated with its event, one of BeforeInvocation", id="plugin"),
        pytest.param({"fatal": ["sell"]}, "fatal: there is no tool 'sell'", id="fatal"),
        pytest.param({"output": object()}, "is not a type that pydantic knows", id="output"),
        pytest.param({"output": "shop:Order"}, "'shop:Order' is a text; give the type itself", id="a type's name"),
        pytest.param({"output": Callable[[int], int]}, "with a JSON schema: Cannot generate", id="no schema"),
        pytest.param({"tools": "price"}, "tools='price': it is a list", id="one tool"),
        pytest.param({"tools": 3}, "tools=3: it is a list; write tools=[...]", id="no tools"),
        pytest.param({"middleware": Window(3)}, "it is a list; write middleware=[...]", id="one middleware"),
        pytest.param({"middleware": None}, "middleware=None: it is a list", id="no middleware"),
        pytest.param({"plugins": "abc"}, "plugins='abc': it is a list; write plugins=[...]", id="a plugin's name"),
        pytest.param({"plugins": print}, "it is a list; write plugins=[...]", id="one plugin"),
        pytest.param({"fatal": 3}, "fatal=3: it is a list; write fatal=[...]", id="no fatal tool"),
        pytest.param({"gates": None}, 'gates=None is unknown: "effects", "none"', id="no gates"),
        pytest.param({"keys": ["buy"]}, "keys=['buy']: it is a dict, such as", id="keys"),
        pytest.param({"loop": 3}, "loop=3: it is a list of steps", id="loop"),
        pytest.param({"fatal": "price"}, "write fatal=['price']", id="one fatal tool"),
        pytest.param({"model": "gpt-5"}, "a model is named provider:model", id="model"),
        pytest.param({"model": []}, "name at least one model", id="no model"),
        pytest.param({"model": ["a:b", "a:b"]}, "'a:b' stands in the list twice", id="one model twice"),
        pytest.param({"model": ["a:b", "c"]}, "model='c': a model is named provider:model", id="a fallback"),
        pytest.param({"model": ["a:b", 5]}, "it is the name of a model, or a list of names", id="no name"),
        pytest.param({"instructions": None}, "it is a text", id="instructions"),
        pytest.param({"gates": {"buy": "Ann"}}, "it is a GatePolicy", id="policy"),
        pytest.param({"gate_policy": None}, "it is a GatePolicy", id="gate policy"),
        pytest.param({"tools": ["files.*"], "gates": ["fils.*"]}, "no tool 'fils.*'", id="server's gate"),
        pytest.param({"tools": ["files.*"], "gates": ["files"]}, "no tool 'files'; there are: files.*", id="a server"),
        pytest.param({"tools": ["files.*"], "gates": {"files": GatePolicy()}}, "no tool 'files'", id="server's policy"),
        pytest.param({"tools": ["files.*"], "gates": ["files.a.*"]}, "no tool 'files.a.*'", id="a part of a server"),
        pytest.param({"tools": ["files.read"], "gates": ["files.write"]}, "no tool 'files.write'", id="not its tool"),
        pytest.param({"gates": [price]}, "gates: there is no tool <function price", id="a function's gate"),
        pytest.param({"orchestrator": Concurrent}, "for example Concurrent(3)", id="orchestrator"),
        pytest.param({"orchestrator": ByTool({"sell": Sequential()})}, "ByTool: there is no tool 'sell'", id="group"),
        pytest.param({"middleware": [Cache(tools=["sell"])]}, "Cache: there is no tool 'sell'", id="cache"),
        pytest.param({"keys": {"sell": "{item}"}}, "keys: there is no tool 'sell'", id="key"),
        pytest.param({"keys": {"buy": "{colour}"}}, "it takes: item, count", id="key's argument"),
        pytest.param({"keys": {"buy": "all"}}, "names arguments of the tool in braces", id="key for all calls"),
        pytest.param({"keys": {"buy": "{item"}}, "keys: buy='{item': expected '}'", id="key's braces"),
        pytest.param({"keys": {"buy": "{count:03d}"}}, "in braces by its name, without `:`", id="key's format"),
        pytest.param({"keys": {"buy": "{item!r}"}}, "in braces by its name, without `:`", id="key's conversion"),
        pytest.param(
            {"tools": ["mail"], "keys": {"mail": "{to[id]}"}}, "in braces by its name", id="a part of an argument"
        ),
        pytest.param({"tools": [asks()], "keys": {"clerk": "{message}"}}, "it is a skill", id="skill's key"),
        pytest.param({"tools": [replace(asks(), key="{message}")]}, "it is a skill", id="skill's own key"),
        pytest.param({"tools": [mix], "keys": {"mix": "{tint}"}}, "the default of tint cannot be", id="key's default"),
    ],
)
def test_mistakes_are_found_when_the_agent_is_made(options: dict[str, Any], said: str) -> None:
    """
    All at once, each with what came and what was expected.
    """
    with pytest.raises(DefinitionError) as raised:
        shop(**options)

    assert said in str(raised.value)
    assert str(raised.value).startswith("agent 'shop' cannot be defined")


@around("model")
async def louder(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Middleware whose work is seen."""
    said = await proceed(turn)
    return said.model_copy(update={"text": said.text.upper()})


def unpriced(event: BeforeToolCall) -> None:
    """A hook whose veto is seen."""
    event.cancel = "No prices."


@pytest.mark.parametrize("add", [False, True], ids=["made", "added-to"])
@pytest.mark.parametrize("make", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_lists_may_come_from_generators(make: Callable[[Any], Any], add: bool) -> None:
    """
    None of their values is dropped, though a generator yields them once: neither middleware, a veto, a gate nor a tool.
    """
    lists: dict[str, Any] = {
        "middleware": make([louder, Budget(model_calls=1, when_spent="ask")]),
        "plugins": make([unpriced]),
        "tools": make(TOOLS),
        "gates": make(["buy"]),
        "fatal": make(["price"]),
    }
    agent = Agent("shop", instructions="Sell tea.", **lists)
    if add:
        agent = agent.adding(middleware=make([]), plugins=make([]), tools=make([]))
    wish = [calls("price", item="a"), calls("buy", item="b")]
    story = play(agent, "go", approve("budget"), answers={"model": [wish, "done"]})

    assert (story.said[-1], results(story)[0]) == ("DONE", ("price", "No prices.", True))
    assert {one.name for one in agent.made_with} == {"price", "stock", "buy"}
    assert [one.name for one in agent.made_with if one.gate is not None] == ["buy"]


def test_what_is_added_is_a_list_too() -> None:
    """
    Else it is refused in the same words.
    """
    with pytest.raises(DefinitionError, match=r"plugins=.*: it is a list; write plugins=\[\.\.\.\]"):
        shop().adding(plugins=unpriced)  # type: ignore[arg-type]  # a mistake


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(Budget, "bounds nothing", id="no budget"),
        pytest.param(lambda: Budget(tokens=0), "tokens=0 is no budget: give a whole number above 0", id="no tokens"),
        pytest.param(lambda: Budget(usd=-1), "usd=-1 is no budget", id="a debt"),
        pytest.param(lambda: Budget(usd=math.nan), "usd=nan is no budget", id="nobody knows how much"),
        pytest.param(lambda: Budget(usd=math.inf), "usd=inf is no budget", id="all the money"),
        pytest.param(lambda: Budget(usd=True), "usd=True is no budget", id="yes"),
        pytest.param(lambda: Budget(usd="1"), "usd='1' is no budget", id="a text"),  # type: ignore[arg-type]  # a mistake
        pytest.param(lambda: Budget(tokens=1.5), "tokens=1.5 is no budget", id="half a token"),  # type: ignore[arg-type]  # a mistake
        pytest.param(Cache, "keeps nothing", id="cache"),
        pytest.param(lambda: RateLimit(0), "max_per_second=0 is no rate", id="no pace"),
        pytest.param(lambda: RateLimit(math.nan), "max_per_second=nan is no rate", id="nobody knows how often"),
        pytest.param(lambda: Window(0), "shows nothing", id="window"),
        pytest.param(lambda: Guardrail(lambda _: None, on="input"), '"reply", "said" or "result"', id="guardrail"),  # type: ignore[arg-type]
        pytest.param(lambda: around("model")(lambda turn, proceed: turn), "no coroutine function", id="function"),
    ],
)
def test_middleware_that_could_do_nothing_is_refused(make: Callable[[], Any], said: str) -> None:
    """
    Where it is made, with the way out.
    """
    with pytest.raises(ValueError, match=said):
        make()


def test_a_gate_for_all_tools_of_a_server() -> None:
    """
    Named as the tools are: `server.*`.
    """
    agent = Agent("host", tools=["files.*"], gates=["files.*"])
    wish = calls("files__search", words="x")
    story = play(agent, "go", reply("files.tools/list", [SEARCH]), reply("model", wish), unfinished=True)

    assert [wait.slot for wait in story.view.waiting_for] == ["files.search"]


SERVED = ("files.read", "files.write", "mail.send")


@given(tools=st.sets(st.sampled_from([*SERVED, "files.*"])), name=st.sampled_from([*SERVED, "files.*", "mail.*"]))
def test_a_named_gate_is_refused_exactly_if_it_would_open_for_no_tool(tools: set[str], name: str) -> None:
    """
    Whether the agent has single tools of a server, or all of them.
    """
    gates, problems = gates_of([name], [], tools, TOOL_GATE)
    offer = ToolOffer(name="tool", description="", parameters={})
    had = [one for one in SERVED if one in tools or f"{one.partition('.')[0]}.*" in tools]

    opened = [one for one in had if gates.before(AgentTool(name=one, effect=None, offer=offer)) is not None]
    assert bool(problems) == (not opened)


def test_the_laws_hold() -> None:
    """
    An agent is a skill: cut anywhere, in any order, whatever its model and its people say.
    """
    agent = shop(gates="effects", gate_policy=GatePolicy(needed=2, approvers=("Ann", "Bob")), turns=2)
    check_laws(agent, tools=TOOLS, max_examples=examples(30))


# --- gates


def test_a_gate_that_nobody_answers_may_let_the_agent_go_on() -> None:
    """
    With `on_timeout="continue"` the model reads that nobody decided; the tool is not called.
    """
    policy = GatePolicy(timeout_s=60, reminder_s=None, on_timeout="continue")
    agent = shop(gates={"buy": policy})
    asks = reply("model", calls("buy", item="tea"))
    story = play(agent, "go", asks, fires("buy"), reply("model", "Not then."))

    said = "nobody answered within 60 s, so this call was not made; do not try it again unasked"
    assert results(story) == [("buy", said, True)]
    assert [one.kind for one in story.asked] == ["chat", "approval", "chat"]


def test_a_denial_is_told_to_the_model() -> None:
    """
    The model reads that a person refused, and why; the tool is not called.
    """
    denial = deny("buy", by="Ann", comment="too dear")
    story = play(
        shop(gates=["buy"]), "go", reply("model", calls("buy", item="tea")), denial, reply("model", "Not then.")
    )

    assert results(story) == [("buy", "Ann denied this call: too dear; do not try it again unasked", True)]
    assert [one.kind for one in story.asked] == ["chat", "approval", "chat"]


def test_by_default_everything_that_has_an_effect_is_gated() -> None:
    """
    What only reads is called at once; the approver sees tool and arguments, and nothing of the model's words.
    """
    wish = [calls("price", item="tea"), calls("buy", item="tea")]
    story = play(shop(gates="effects"), "go", reply("model", wish), reply("price", 1), unfinished=True)
    (wait,) = story.view.waiting_for

    assert (wait.slot, wait.show) == ("buy", {"tool": "buy", "arguments": {"item": "tea"}})
    assert wait.editable == ("arguments", "result")


def test_nobody_is_asked_about_a_call_that_cannot_be_made() -> None:
    """
    Arguments that do not fit are the model's to put right, before a person sees them.
    """
    story = play(shop(gates="effects"), "go", answers={"model": [calls("buy", count=3), "ok"]})

    assert [one.kind for one in story.asked] == ["chat", "chat"]
    ((_, told, failed),) = results(story)
    assert (failed, "it needs item" in told) == (True, True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"arguments": {"item": "tea", "count": 2}},
            {"called_with": {"item": "tea", "count": 2}, "result": "2 tea"},
            id="other arguments",
        ),
        pytest.param({"result": "bought by hand"}, "bought by hand", id="the result"),
    ],
)
def test_whoever_grants_may_change_the_call_or_answer_for_it(changes: dict[str, Any], told: Any) -> None:
    """
    What was changed is called, and the model learns of it; an answer takes the call's place.
    """
    script: list[Any] = [reply("model", calls("buy", item="tea")), approve("buy", changes=changes)]
    story = play(shop(gates=["buy"]), "go", script, answers={"model": ["ok"]}, tools=TOOLS)

    assert results(story) == [("buy", told, False)]
