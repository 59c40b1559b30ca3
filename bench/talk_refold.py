"""The conversation as a skill: a model and a tool in a loop, and nothing else."""

from __future__ import annotations

from bench.talk import INSTRUCTIONS, Talk
from refold import Content, Ctx, Said, ToolReturn, Transition, UserSaid, flow_skill, step, tool
from refold.temporal import workflow_for


@tool(effect="read_only")
async def look_up(source: int, chars: int) -> str:
    """Looks up one source, by its number."""
    return Talk(turns=0, said_chars=0, returned_chars=chars).returned(source)


@flow_skill(id="bench_talk")
class BenchTalk:
    """Calls the model and the tools that it requests, until it requests none."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("turn", say=[UserSaid(content=content)])

    @step
    async def turn(self, ctx: Ctx, say: list[Said]) -> Transition:
        reply = await ctx.chat("model", say, instructions=INSTRUCTIONS, tools=[look_up])
        if not reply.tool_calls:
            return ctx.complete(reply.text)
        returns = [
            ToolReturn(id=call.id, name=call.name, value=await ctx.tool(call.name, call.args))
            for call in reply.tool_calls
        ]
        return ctx.goto("turn", say=returns)


BenchTalkWorkflow = workflow_for(BenchTalk)
