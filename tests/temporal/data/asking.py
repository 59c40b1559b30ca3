"""A skill whose part has an input that is stored."""

from __future__ import annotations

from refold import Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for
from tests.temporal.skills import Counts

LONG = "x" * 70_000


@flow_skill(id="asks_a_part")
class AsksAPart:
    """Has a part answer."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("part", Counts, Content.from_text(content.text + LONG))).text)


AsksAPartWorkflow = workflow_for(AsksAPart)
