"""The smallest useful skill: a model greets the user."""

from refold import Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for


@flow_skill(id="hello")
class Hello:
    """Greets the user."""

    @step(start=True)
    async def greet(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.llm("greeting", "Greet this person in one sentence.", content))


HelloWorkflow = workflow_for(Hello)
