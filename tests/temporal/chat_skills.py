"""A conversation with a tool, for as long as the user likes."""

from __future__ import annotations

from refold import Content, Ctx, ToolReturn, Transition, flow_skill, step, tool
from refold.temporal import workflow_for

INSTRUCTIONS = "You help with the weather. " * 40


@tool(effect="read_only")
async def weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"rain in {city}, " * days


@flow_skill(id="chats")
class Chats:
    """A model with a tool; the user may go on after each answer."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("turn", say=[content.text])

    @step
    async def turn(self, ctx: Ctx, say: list[str | ToolReturn]) -> Transition:
        reply = await ctx.chat("model", say, instructions=INSTRUCTIONS, tools=[weather])
        if reply.tool_calls:
            returns = [
                ToolReturn(id=call.id, name=call.name, value=await ctx.tool(weather, call.args))
                for call in reply.tool_calls
            ]
            return ctx.goto("turn", say=returns)
        return ctx.await_input("next", reply.text)

    @step(resume_from="turn")
    async def more(self, ctx: Ctx, content: Content) -> Transition:
        if content.text == "bye":
            return ctx.complete(f"{len(ctx.thread())} turns")
        return ctx.goto("turn", say=[content.text])


ChatsWorkflow = workflow_for(Chats)
