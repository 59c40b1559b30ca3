"""A skill that asks for many effects at once."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from refold import Ctx, Transition, flow_skill, step, tool
from refold.temporal import workflow_for


@activity.defn
async def lengths(*texts: str) -> int:
    """The length of all texts together."""
    return sum(map(len, texts))


@tool(effect="idempotent")
async def length(number: int, text: str) -> int:
    """The length of a text; the number makes each call another one."""
    return len(text)


class Crowd(BaseModel):
    many: int
    chars: int = 10
    letter: str = "x"
    args: int = 0


@flow_skill(id="wide_errand", input=Crowd)
class WideErrand:
    """Asks for so many effects, with texts of so many characters; of activities if each has several arguments."""

    @step(start=True)
    async def begin(self, ctx: Ctx, crowd: Crowd) -> Transition:
        text = crowd.letter * crowd.chars
        calls = [
            ctx.activity("count", "lengths", *[text] * crowd.args)
            if crowd.args
            else ctx.tool(length, number=number, text=text)
            for number in range(crowd.many)
        ]
        return ctx.complete(str(sum(await ctx.gather(*calls))))


WideErrandWorkflow = workflow_for(WideErrand)
