"""A task of some effects that each take a while, for the benchmark of fairness."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from refold import Ctx, Transition, flow_skill, step, tool
from refold.temporal import workflow_for


class Work(BaseModel):
    """What a task does: so many effects, one after the other, of so many seconds each."""

    steps: int
    effect_s: float


@tool(effect="idempotent")
async def takes(effect_s: float) -> None:
    """Takes a while, as a model's reply does."""
    await asyncio.sleep(effect_s)


@flow_skill(id="works", input=Work)
class Works:
    """Makes one call after the other."""

    @step(start=True)
    async def begin(self, ctx: Ctx, work: Work) -> Transition:
        """All of them."""
        for _ in range(work.steps):
            await ctx.tool(takes, effect_s=work.effect_s)
        return ctx.complete()


WorksWorkflow = workflow_for(Works)
TOOLS = [takes]
