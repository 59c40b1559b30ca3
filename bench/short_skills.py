"""What the benchmark of both ways runs: a skill that makes steps of a kind."""

from __future__ import annotations

from pydantic import BaseModel

from refold import Ctx, Transition, flow_skill, step, tool
from refold.temporal import workflow_for


@tool(effect="read_only")
async def plain(n: int, size: int) -> str:
    """A text of this many characters."""
    return f"{n:x<{size}}"


@tool(effect="at_most_once")
async def once(n: int, size: int) -> str:
    """The same, with a receipt."""
    return f"{n:x<{size}}"


TOOLS = (plain, once)  # no list: tasks share the copy of a module that is immutable


class Plan(BaseModel):
    """How many steps, of which kind, and how large their results are, in characters."""

    steps: int
    kind: str = "plain"
    size: int = 20


@flow_skill(id="paces", input=Plan)
class Paces:
    """Makes the steps one after the other."""

    @step(start=True)
    async def begin(self, ctx: Ctx, plan: Plan) -> Transition:
        for n in range(plan.steps):
            await ctx.tool(once if plan.kind == "once" else plain, n=n, size=plan.size)
        return ctx.complete("done")


PacesWorkflow = workflow_for(Paces)
