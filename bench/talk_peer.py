"""The conversation in pydantic-ai's own Temporal integration: an agent in a workflow.

Its model calls contain all messages so far, so its history grows with the square of the conversation. Everything
follows its documentation; only its limit of fifty requests a run is lifted.
"""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import PydanticAIWorkflow, TemporalDurability
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits
from temporalio import workflow

from bench.talk import INSTRUCTIONS, TOOL, Talk, call_id


async def _say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer from the script: the turn is the number of the replies so far."""
    first = messages[0]
    assert isinstance(first, ModelRequest)
    asked = next(part.content for part in first.parts if isinstance(part, UserPromptPart))
    talk, turn = Talk.of(str(asked)), sum(isinstance(one, ModelResponse) for one in messages) + 1
    said = TextPart(talk.said(turn))
    if turn > talk.turns:
        return ModelResponse(parts=[said])
    wanted = {"source": turn, "chars": talk.returned_chars}
    return ModelResponse(parts=[said, ToolCallPart(TOOL, wanted, tool_call_id=call_id(turn))])


agent = Agent(
    FunctionModel(_say, model_name="gpt-bench"),
    name="bench_peer",
    instructions=INSTRUCTIONS,
    capabilities=[TemporalDurability()],
)


@agent.tool_plain
async def look_up(source: int, chars: int) -> str:
    """Looks up one source, by its number."""
    return Talk(turns=0, said_chars=0, returned_chars=chars).returned(source)


@workflow.defn(name="talk_peer")
class TalkPeer(PydanticAIWorkflow):
    """Asks the agent."""

    __pydantic_ai_agents__ = (agent,)

    @workflow.run
    async def run(self, question: str) -> str:
        result = await agent.run(question, usage_limits=UsageLimits(request_limit=None))
        return result.output
