"""Tasks with parts that have parts: what they ask, what they wait for, and for how long."""

from __future__ import annotations

from pydantic import BaseModel, RootModel

from refold import CommandError, Content, Ctx, Transition, flow_skill, step, tool
from refold.agent import Agent, skill_tool
from refold.effects import Never
from refold.temporal import workflow_for

BROKEN: set[str] = set()
"""The tasks whose tool fails."""


@tool(effect="idempotent")
def fits(order: str) -> bool:
    """Fails while a test says so."""
    if order in BROKEN:
        raise Never(f"{order} is broken")
    return True


@flow_skill(id="low")
class Low:
    """Asks twice, with a tool between."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        size = await ctx.ask("size", f"Size of {content.text}?")
        await ctx.tool(fits, order=content.text)
        color = await ctx.ask("color", f"Color of {content.text}?")
        return ctx.complete(f"{size.text} {color.text}")


@flow_skill(id="middle")
class Middle:
    """Has a part."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("low", Low, content)).text)


@flow_skill(id="top")
class Top:
    """Has a part that has a part."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("middle", Middle, content)).text)


@flow_skill(id="does_without")
class DoesWithout:
    """Goes on where its part fails."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        try:
            await ctx.skill("low", Low, content)
        except CommandError:
            await ctx.ask("next", "Go on without it?")
        return ctx.complete()


class Number(RootModel[int]):
    """A number of things."""


@flow_skill(id="counts_low")
class CountsLow:
    """Asks for a number."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        number = await ctx.ask("number", "How many?", expect=Number)
        return ctx.complete(str(number.root))


@flow_skill(id="counts_top")
class CountsTop:
    """Has a part that asks for a number."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("low", CountsLow, content)).text)


@flow_skill(id="gated")
class Gated:
    """Asks for two decisions, one after the other."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        first = await ctx.approve("first", "The first?", show={"order": content.text})
        second = await ctx.approve("second", "The second?", show={"order": content.text})
        return ctx.complete(f"{first.decision}, {second.decision}")


@flow_skill(id="lets_decide")
class LetsDecide:
    """Has a part that asks for decisions."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("gated", Gated, content)).text)


@flow_skill(id="lets_part_decide")
class LetsPartDecide:
    """Has a part whose part asks for decisions."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("middle", LetsDecide, content)).text)


class Limits(BaseModel):
    queue: str | None = None
    timeout_s: float | None = None


@flow_skill(id="limited", input=Limits)
class Limited:
    """Gives its part a queue and a timeout."""

    @step(start=True)
    async def begin(self, ctx: Ctx, limits: Limits) -> Transition:
        try:
            outcome = await ctx.skill("low", Low, "tea", queue=limits.queue, timeout_s=limits.timeout_s)
        except CommandError as error:
            return ctx.complete(f"{error.failure.type}: {error.failure.message}")
        return ctx.complete(outcome.text)


@flow_skill(id="misfits")
class Misfits:
    """Gives its part an input that the part does not take."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("limits", Limited, {"timeout_s": "soon"})).text)


Boss = Agent(
    "boss",
    instructions='-> low(message="tea")\n-> It said: {low}',
    tools=[skill_tool(Low, effect="read_only", queue="nobody-serves-this", timeout_s=1.0)],
)

Helper = Agent("helper", instructions='-> fits(order="tea")\n-> Fits.', tools=[fits], gates="none")
Payer = Agent(
    "payer",
    instructions='-> helper(message="tea")\n-> It said: {helper}',
    tools=[skill_tool(Helper, effect="read_only", budget={"model_calls": 1})],
)

TOOLS = [fits]
LowWorkflow = workflow_for(Low)
MiddleWorkflow = workflow_for(Middle)
TopWorkflow = workflow_for(Top)
DoesWithoutWorkflow = workflow_for(DoesWithout)
CountsLowWorkflow = workflow_for(CountsLow)
CountsTopWorkflow = workflow_for(CountsTop)
GatedWorkflow = workflow_for(Gated)
LetsDecideWorkflow = workflow_for(LetsDecide)
LetsPartDecideWorkflow = workflow_for(LetsPartDecide)
LimitedWorkflow = workflow_for(Limited)
MisfitsWorkflow = workflow_for(Misfits)
BossWorkflow = workflow_for(Boss)
HelperWorkflow = workflow_for(Helper)
PayerWorkflow = workflow_for(Payer)
