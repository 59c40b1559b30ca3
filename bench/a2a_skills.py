"""The skills behind both servers: an echo, and a task that waits."""

from __future__ import annotations

from refold import Artifact, Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for


@flow_skill(id="echo", description="Says back what it hears.")
class Echo:
    @step(start=True)
    async def say(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(content, [Artifact(name="echo", parts=content.parts)])


@flow_skill(id="waits", description="Waits for an answer.")
class Waits:
    @step(start=True)
    async def ask(self, ctx: Ctx, content: Content) -> Transition:
        answer = await ctx.ask("word", "Say something.")
        return ctx.complete(answer.text)


SKILLS = [Echo, Waits]

EchoWorkflow = workflow_for(Echo)
WaitsWorkflow = workflow_for(Waits)
