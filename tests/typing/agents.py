"""The agent's API as a reader uses it; checked by type checkers, never run."""

from collections.abc import AsyncIterator
from typing import assert_type

from pydantic import BaseModel, JsonValue

from refold import Ctx, GatePolicy, Status, Transition, flow_skill, step, tool
from refold.agent import (
    AfterModelCall,
    Agent,
    Answer,
    BeforeToolCall,
    Block,
    Budget,
    ByTool,
    Cache,
    Concurrent,
    Guardrail,
    Middleware,
    ModelTurn,
    Plugin,
    RateLimit,
    Sequential,
    Step,
    ToolTurn,
    Window,
    skill_tool,
)
from refold.core.chat import Reply, ToolReturn
from refold.engine import Engine, News


class Quote(BaseModel):
    cents: int


@tool(effect="read_only")
def price(item: str) -> int:
    return len(item)


class Veto(Plugin):
    tools = (price,)

    def before_tool_call(self, event: BeforeToolCall) -> None:
        assert_type(event.tool_use.args, dict[str, JsonValue])
        event.cancel = "no"


def again(event: AfterModelCall) -> None:
    event.retry = event.reply is None


class Twice(Middleware):
    steps = ("model",)

    def wrap(self, step: Step[ModelTurn, Reply]) -> Step[ModelTurn, Reply]:
        return step


def judge(text: str) -> Block | None:
    return Block("no") if text else None


async def guess(turn: ToolTurn) -> ToolReturn:
    return ToolReturn(id=turn.call.id, name=turn.call.name, value=turn.state.app.get("seen"))


@flow_skill(id="asks_an_agent")
class Asks:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.complete((await ctx.skill("helper", HELPER, "Help.")).text)


HELPER = Agent(
    "helper",
    model="openai:gpt-5",
    tools=[price, Asks, skill_tool(Asks, name="ask", effect="read_only"), "files.*"],
    output=Quote,
    gates={"price": GatePolicy(needed=2)},
    middleware=[Twice(), Guardrail(judge), Budget(tokens=1), Cache(tools=["price"]), RateLimit(1), Window(9)],
    plugins=[Veto(), again],
    orchestrator=ByTool({"price": Concurrent(3)}, rest=Sequential()),
    turns=None,
    keys={"price": "price:{item}"},
)


async def used(engine: Engine) -> None:
    answer = await HELPER.invoke(engine, "Hi", owner="Ann")
    assert_type(answer, Answer)
    assert_type(answer.status, Status)
    assert_type(answer.value, JsonValue)
    stream = HELPER.stream(engine, "More", task_id=answer.task_id)
    assert_type(stream, AsyncIterator[News])
