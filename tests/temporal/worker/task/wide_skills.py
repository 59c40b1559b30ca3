"""A skill that asks for many effects at once."""

from __future__ import annotations

from pydantic import BaseModel

from refold import Ctx, Transition, flow_skill, step, tool
from refold.temporal import workflow_for


@tool(effect="idempotent")
async def length(number: int, text: str) -> int:
    """The length of a text; the number makes each call another one."""
    return len(text)


class Crowd(BaseModel):
    many: int
    chars: int = 10


@flow_skill(id="wide_errand", input=Crowd)
class WideErrand:
    """Asks for so many effects, with texts of so many characters."""

    @step(start=True)
    async def begin(self, ctx: Ctx, crowd: Crowd) -> Transition:
        text = "x" * crowd.chars
        calls = [ctx.tool(length, number=number, text=text) for number in range(crowd.many)]
        return ctx.complete(str(sum(await ctx.gather(*calls))))


WideErrandWorkflow = workflow_for(WideErrand)
