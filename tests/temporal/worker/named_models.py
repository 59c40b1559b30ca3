"""Skills that name models in their code."""

from __future__ import annotations

from refold import Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for

ANYONE = ["scripted:demo", "groq:llama"]


async def translated(ctx: Ctx, text: str) -> str:
    """A helper's model counts, too."""
    return await ctx.llm("translate", "Translate.", text, model="cohere:command")


@flow_skill()
class Polyglot:
    """Translates, and writes about it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Name a model by a constant, and one in a helper."""
        text = await translated(ctx, content.text)
        return ctx.complete(await ctx.llm("write", "Write.", text, model=ANYONE))


PolyglotWorkflow = workflow_for(Polyglot)
