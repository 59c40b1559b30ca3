"""A skill whose steps share a state: what a step writes to it is in the journal's audit, and history keeps no words."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from refold import Contract, Ctx, StatePatch, Transition, flow_skill, step
from refold.temporal import workflow_for


class Work(BaseModel):
    """What the steps share."""

    model_config = ConfigDict(frozen=True)

    plan: str = ""
    more: str = ""


@flow_skill(id="recorded_contract", contract=Contract(state=Work, begins=lambda content, ctx: Work(plan=content.text)))
class Wordless:
    """Writes a plan, sleeps for a day, and asks."""

    @step(start=True, reads=["plan"], writes=["plan"])
    async def begin(self, ctx: Ctx, state: Work) -> StatePatch | Transition:
        await ctx.ask("first", "And?")
        return ctx.goto("rest").patch(plan="a plan")

    @step(reads=["plan"], writes=["more"])
    async def rest(self, ctx: Ctx, state: Work) -> StatePatch | Transition:
        await ctx.sleep(86_400)
        return ctx.complete("Done.").patch(more="x")


WordlessWorkflow = workflow_for(Wordless)
