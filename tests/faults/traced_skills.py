"""A task with everything that a trace tells of: a model call, a gate, a part, a tool that fails until it may not."""

from __future__ import annotations

import os
from pathlib import Path

from refold import Content, Ctx, GatePolicy, Transition, flow_skill, step, tool
from refold.effects import Never
from refold.temporal import workflow_for

SECRET = "swordfish"
"""Stands in the prompt, the arguments, the results, the gate and the failure."""

MENDED = "TRACED_MENDED"
"""The environment variable that names the file which mends the tool."""


@tool(effect="at_most_once")
def deliver(what: str) -> str:
    """Fails until the file is there."""
    if not Path(os.environ[MENDED]).exists():
        raise Never(f"{what} cannot be delivered")
    return f"{what} delivered"


@flow_skill(id="traced_part")
class TracedPart:
    """A part."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask a model."""
        return ctx.complete(await ctx.llm("think", "Think of it.", content))


@flow_skill(id="traced")
class Traced:
    """A whole."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask, have decided, have a part, deliver."""
        await ctx.llm("greet", f"Never say {SECRET}.", content)
        await ctx.approve("pay", f"Pay for {SECRET}?", show={"card": SECRET}, policy=GatePolicy())
        await ctx.skill("sub", "traced_part", content)
        return ctx.complete(await ctx.tool(deliver, what=SECRET, key=f"deliver:{SECRET}"))


TracedPartWorkflow = workflow_for(TracedPart)
TracedWorkflow = workflow_for(Traced)
