"""Skills whose effects are performed within workflow tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from refold import CommandError, Content, Ctx, Transition, flow_skill, step, tool
from refold.effects import Never, TryLater
from refold.temporal import workflow_for

calls: Counter[str] = Counter()
"""How often each tool ran, by what it was asked for; kept in the worker's process."""
gates: dict[str, asyncio.Event] = {}


@tool(effect="at_most_once")
async def count(what: str) -> int:
    """How often it was called."""
    calls[what] += 1
    return calls[what]


@tool(effect="idempotent")
async def hold(gate: str) -> str:
    """Waits until a test opens the gate."""
    calls[gate] += 1
    try:
        await gates.setdefault(gate, asyncio.Event()).wait()
    except asyncio.CancelledError:
        calls[f"{gate} canceled"] += 1
        raise
    return "open"


@tool(effect="idempotent")
async def moody(how: str) -> str:
    """Fail: at every call with `never`, else at the first call only."""
    calls[how] += 1
    if how == "never":
        raise Never("the account is closed")
    if calls[how] == 1:
        raise TryLater("it is busy", after=0.01)
    return f"after {calls[how]}"


@tool(effect="idempotent")
async def large(size: int) -> str:
    """A text of this many characters."""
    return "x" * size


@tool(effect="read_only", durability="ledger")
async def glance(what: str) -> str:
    """Takes the short way, whatever skill and worker say."""
    calls[what] += 1
    return what


TOOLS: list[Any] = [count, hold, moody, large, glance]


@flow_skill(id="quick")
class Quick:
    """Answers at once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(content.text)


@flow_skill(id="short_errand", durability="ledger")
class ShortErrand:
    """Does what the lines of its message say, one after the other, and answers with what came of it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        said = []
        for line in content.text.splitlines():
            verb, _, rest = line.partition(" ")
            try:
                match verb:
                    case "count":
                        said.append(str(await ctx.tool(count, what=rest)))
                    case "hold":
                        said.append(await ctx.tool(hold, gate=rest))
                    case "holds":
                        said += await ctx.gather(*[ctx.tool(hold, gate=gate) for gate in rest.split()])
                    case "beside":
                        part, text = ctx.skill("part", Quick, Content.from_text(rest)), ctx.tool(hold, gate=rest)
                        said += [one if isinstance(one, str) else one.text for one in await ctx.gather(part, text)]
                    case "moody":
                        said.append(await ctx.tool(moody, how=rest))
                    case "large":
                        said.append(str(len(await ctx.tool(large, size=int(rest)))))
                    case "glance":
                        said.append(await ctx.tool(glance, what=rest))
                    case "ask":
                        said.append((await ctx.ask(rest, "And now?")).text)
                    case "sleep":
                        await ctx.sleep(float(rest))
                        said.append("slept")
                    case "beside_never":
                        counts: list[Any] = [ctx.tool(count, what=what) for what in rest]
                        await ctx.gather(*counts, ctx.tool(moody, how="never"))
                    case "crowd":
                        crowd = [ctx.tool(count, what=f"{rest} {n}") for n in range(int(rest))]
                        said.append(str(sum(await ctx.gather(*crowd))))
                    case "first":
                        quick, slow = ctx.llm("quick", rest), ctx.llm("slow", rest, model="scripted:slow")
                        said.append(str((await ctx.first(quick, slow))[0]))
                    case "larges":
                        texts = await ctx.gather(*[ctx.tool(large, size=int(size)) for size in rest.split()])
                        said.append(str(sum(map(len, texts))))
                    case "unknown":
                        said.append(str(await ctx.tool("nobody_has_it")))
                    case _:
                        said.append(str(await ctx.llm("say", line)))
            except CommandError as error:
                said.append(error.failure.type)
        return ctx.complete(" ".join(said))


@flow_skill(id="plain_errand")
class PlainErrand(ShortErrand):
    """The same, where the worker says which way."""


QuickWorkflow = workflow_for(Quick)
ShortErrandWorkflow = workflow_for(ShortErrand)
PlainErrandWorkflow = workflow_for(PlainErrand)
