"""What two releases of an application know: the newer one has a skill and a tool more."""

from __future__ import annotations

from pydantic import BaseModel

from refold import Content, Ctx, Transition, flow_skill, step, tool
from refold.temporal import workflow_for


@tool(effect="idempotent")
def new_tool() -> str:
    """A tool of the newer release."""
    return "new"


class Errand(BaseModel):
    tool: str = ""
    skill: str = ""
    queue: str | None = None


@flow_skill(id="fleet_errand", input=Errand)
class FleetErrand:
    """A skill of both releases; calls what it is told to."""

    @step(start=True)
    async def begin(self, ctx: Ctx, errand: Errand) -> Transition:
        if errand.tool:
            return ctx.complete(str(await ctx.tool(errand.tool, queue=errand.queue)))
        return ctx.complete((await ctx.skill("part", errand.skill, "go", queue=errand.queue)).text)


@flow_skill(id="fleet_newcomer")
class FleetNewcomer:
    """A skill of the newer release; asks if it is told to."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        if content.text == "ask":
            await ctx.ask("word", "Say something.")
        return ctx.complete("new")


FleetErrandWorkflow = workflow_for(FleetErrand)
FleetNewcomerWorkflow = workflow_for(FleetNewcomer)
