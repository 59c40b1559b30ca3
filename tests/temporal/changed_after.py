"""The skill of `changed_before`, changed under its running tasks: it looks something up first."""

from __future__ import annotations

from refold import Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for


@flow_skill(id="changed")
class Changed:
    """Thinks before it asks."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Think, then ask."""
        await ctx.llm("think", "Think.", content)
        answer = await ctx.ask("who", "Who?")
        return ctx.complete(f"{content.text}, {answer.text}!")


ChangedWorkflow = workflow_for(Changed)
