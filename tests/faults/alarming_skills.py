"""A skill that comes into whatever situation an alert is about, and its tools."""

from __future__ import annotations

import time
from pathlib import Path

from refold import Content, Ctx, RetryPolicy, Transition, flow_skill, step, tool
from refold.effects import Never, TryLater
from refold.temporal import workflow_for

HOUR_S = 3600.0
LOOK_EVERY_S = 0.02
NOBODYS = "alerts-nobody"
"""A task queue that no worker polls."""

PERSISTENT = RetryPolicy(base=0.05, factor=1, max_retries=1000)
BLOCKS = RetryPolicy(max_retries=0, on_exhausted="block", probe_s=HOUR_S)


@tool(effect="idempotent")
async def busy() -> None:
    """Never has time."""
    raise TryLater("it is busy")


@tool(effect="idempotent")
async def down() -> None:
    """Is down."""
    raise TryLater("it is down")


@tool(effect="idempotent")
async def much() -> str:
    """Says more than fits into history."""
    return "x" * 3_000_000


@tool(effect="at_most_once")
def send_slowly(gate: str) -> str:
    """Sends a parcel, once the file `gate` exists."""
    while not Path(gate).exists():
        time.sleep(LOOK_EVERY_S)
    return "sent"


@tool(effect="at_most_once")
async def send(letter: str) -> str:
    """Sends a letter, and does not always hear whether it arrived."""
    if letter == "lost":
        raise RuntimeError("no answer")
    return "sent"


@tool(effect="idempotent")
async def take_back() -> None:
    """Cannot be done."""
    raise Never("what is sold is sold")


@tool(effect="compensate", undo=take_back)
async def sell() -> str:
    """Sells something."""
    return "sold"


@flow_skill(id="alarming")
class Alarming:
    """Does what it is told, for better or worse."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        match content.text:
            case "run":
                await ctx.sleep(HOUR_S)
            case "retry":
                await ctx.tool(busy, retry=PERSISTENT)
            case "block":
                await ctx.tool(down, retry=BLOCKS)
            case "elsewhere":
                await ctx.tool(down, queue=NOBODYS)
            case "much":
                await ctx.tool(much)
            case gate if gate.startswith("/"):
                await ctx.tool(send_slowly, gate=gate)
            case "send" | "lost":
                await ctx.tool(send, letter=content.text)
            case "pause":
                await ctx.ask("more", "More?", timeout_s=HOUR_S)
                await ctx.ask("again", "And again?", timeout_s=HOUR_S)
            case "sell":
                await ctx.tool(sell)
                return ctx.fail("nobody wants it")
            case _:
                return ctx.fail("nothing to do")
        return ctx.complete("done")


AlarmingWorkflow = workflow_for(Alarming)
TOOLS = [busy, down, much, send, send_slowly, sell, take_back]
