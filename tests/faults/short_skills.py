"""Skills whose effects are performed within workflow tasks, and are asked for with the time at which they are."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from refold import Content, Ctx, Transition, flow_skill, step, tool
from refold.temporal import workflow_for
from tests.faults.skills import note


@tool(effect="idempotent")
async def stamp(n: int, at: str) -> str:
    """Notes that it was called."""
    note(f"stamp {n}")
    return at


@tool(effect="at_most_once")
async def charge(n: int, at: str) -> int:
    """May happen once."""
    note(f"charge {n}")
    return n


@tool(effect="idempotent")
async def wait_for(gate: str) -> str:
    """Waits until the file `gate` exists."""
    note("waits")
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process opens it
        await asyncio.sleep(0.01)
    return os.environ.get("SHORT_NAME", "")


@flow_skill(id="short_chain", durability="ledger")
class ShortChain:
    """Stamps and charges, two at a time, then waits, then charges once more."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        for n in range(3):
            at = ctx.now.isoformat()
            await ctx.gather(ctx.tool(stamp, n=n, at=at), ctx.tool(charge, n=n, at=at))
        await ctx.tool(wait_for, gate=content.text)
        last = await ctx.tool(charge, n=99, at=ctx.now.isoformat())
        return ctx.complete(f"charged {last}")


ShortChainWorkflow = workflow_for(ShortChain)
