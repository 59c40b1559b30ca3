"""Tools that report their progress, and agents that call them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from temporalio import activity

from refold import Content, Ctx, Transition, flow_skill, step, tool
from refold.agent import Agent
from refold.effects import TryLater, current
from refold.temporal import workflow_for

SEEN = threading.Event()
"""Set by a test once it has seen what it waits for; the tools return then."""

LAST = "the last of them"

TRIED: list[str] = []
"""The calls of `stumble`, each as often as it was tried."""


@tool(effect="read_only", timeout_s=300)
async def scan(pages: int) -> int:
    """Reports from a coroutine."""
    for page in range(1, pages + 1):
        current().progress({"done": page, "of": pages})
    current().progress(LAST)
    await asyncio.to_thread(SEEN.wait, 200)
    return pages


@tool(effect="read_only", timeout_s=300)
def hurry(reports: int) -> int:
    """Reports from a thread, far too often."""
    for number in range(reports):
        current().progress(f"report {number}")
    current().progress(LAST)
    SEEN.wait(200)
    return reports


@tool(effect="read_only", timeout_s=300)
def babble(kind: str) -> str:
    """Reports what does not fit."""
    odd: dict[str, Any] = {
        "object": object(),
        "text": "x" * 5_000_000,
        "list": list(range(1_000_000)),
        "half": "\ud800",
    }
    current().progress(odd[kind])
    SEEN.wait(200)
    return kind


@tool(effect="read_only", timeout_s=30)
async def beat(times: int) -> int:
    """Sends heartbeats of its own, as an activity of Temporal does."""
    for done in range(times):
        activity.heartbeat({"tool": "beat", "done": done})
    await asyncio.to_thread(SEEN.wait, 2)
    return times


@tool(effect="read_only", timeout_s=300)
async def stumble(tries: int) -> int:
    """Reports once in each try, and fails in all but the last, once its report was seen."""
    TRIED.append(current().invocation_id)
    tried = TRIED.count(current().invocation_id)
    current().progress(LAST if tried == tries else f"try {tried}")
    await asyncio.to_thread(SEEN.wait, 20)
    SEEN.clear()
    if tried < tries:
        raise TryLater("busy")
    return tried


@tool(effect="read_only")
def mute(pages: int) -> int:
    """Reports nothing."""
    return pages


@flow_skill(id="reports")
class Reports:
    """Calls the tool that the message names, with one argument."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        name, _, said = content.text.partition(" ")
        takes = {
            "scan": "pages",
            "hurry": "reports",
            "babble": "kind",
            "mute": "pages",
            "beat": "times",
            "stumble": "tries",
        }[name]
        await ctx.tool(name, {takes: int(said) if said.isdigit() else said})
        return ctx.complete("done")


Reader = Agent("reader", instructions="-> scan(pages=3)\n-> Read.", tools=[scan])

TOOLS: list[Any] = [scan, hurry, babble, mute, beat, stumble]
ReportsWorkflow = workflow_for(Reports)
ReaderWorkflow = workflow_for(Reader)
