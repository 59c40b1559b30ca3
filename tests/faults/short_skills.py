"""Skills whose effects are performed within workflow tasks, and are asked for with the time at which they are."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from refold import Content, Ctx, Transition, flow_skill, step, tool
from refold.effects import Done, NotDone, current
from refold.temporal import workflow_for
from tests.faults.skills import LEDGER, note

STEP_S = 0.02


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


def walked(key: str) -> Done | NotDone:
    """Whether the step was made."""
    noted = f'"{current().invocation_id}"' in Path(os.environ[LEDGER]).read_text()
    return Done(0) if noted else NotDone()


@tool(effect="at_most_once", probe=walked)
async def tread(n: int, at: str) -> int:
    """A step that may be made once, and takes a while."""
    await asyncio.sleep(STEP_S)
    note(f"tread {n}")
    return 0


@tool(effect="idempotent")
async def look_round(n: int, at: str) -> str:
    """May be repeated, and takes a while."""
    await asyncio.sleep(STEP_S)
    note(f"look {n}")
    return at


class Far(BaseModel):
    steps: int


class Walk:
    """Treads and looks round, as often as it is told; each time with the time at which it does."""

    @step(start=True)
    async def begin(self, ctx: Ctx, far: Far) -> Transition:
        for n in range(far.steps):
            await ctx.tool(tread, n=n, at=ctx.now.isoformat())
            await ctx.tool(look_round, n=n, at=ctx.now.isoformat())
        return ctx.complete("there")


@flow_skill(id="short_walk", input=Far, durability="ledger")
class ShortWalk(Walk):
    """The short way."""


@flow_skill(id="any_walk", input=Far)
class AnyWalk(Walk):
    """As the worker says."""


ShortWalkWorkflow = workflow_for(ShortWalk)
AnyWalkWorkflow = workflow_for(AnyWalk)
ShortChainWorkflow = workflow_for(ShortChain)
