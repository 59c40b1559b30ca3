"""A skill as tasks were started with; `changed_after` is its code after a change."""

from __future__ import annotations

from refold import Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for


@flow_skill(id="changed")
class Changed:
    """Asks before anything else."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask."""
        answer = await ctx.ask("who", "Who?")
        return ctx.complete(f"{content.text}, {answer.text}!")


ChangedWorkflow = workflow_for(Changed)
