"""A skill that does what a made-up list of verbs says, whichever way its effects take."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import BaseModel

from refold import CommandError, Ctx, GatePolicy, RetryPolicy, Transition, flow_skill, step, tool
from refold.effects import Never, TryLater, current
from refold.temporal import workflow_for

made: Counter[tuple[str, str]] = Counter()
"""How often each effect took place, by its task and by what it was asked for."""


def _made(what: str) -> int:
    key = (current().task_id, what)
    made[key] += 1
    return made[key]


@tool(effect="at_most_once")
async def once(what: str) -> int:
    """How often it took place."""
    return _made(what)


@tool(effect="read_only")
def read(what: str) -> dict[str, Any]:
    """What it was asked for, from a thread."""
    return {"read": what, "times": _made(what)}


@tool(effect="idempotent")
async def fails(what: str, times: int) -> str:
    """Fails so often, then succeeds; below zero for good."""
    n = _made(what)
    if times < 0:
        raise Never("it will not")
    if n <= times:
        raise TryLater("not yet", after=0.01)
    return f"after {n}"


@tool(effect="idempotent")
async def gives_back(what: str) -> None:
    """Compensates."""
    _made(f"undo {what}")


@tool(effect="compensate", undo=gives_back)
async def takes(what: str) -> str:
    """Is undone where the task fails."""
    _made(what)
    return what


@tool(effect="idempotent")
async def large(size: int) -> str:
    """A text that goes to storage."""
    return "x" * size


TOOLS: list[Any] = [large, once, read, fails, gives_back, takes]

BLOCKS = RetryPolicy(max_retries=1, base=0.01, on_exhausted="block", probe_s=0.02)
QUICK = RetryPolicy(max_retries=2, base=0.01)


class Program(BaseModel):
    verbs: list[str]


@flow_skill(id="made_up", input=Program)
class MadeUp:
    """Does what it is told, verb by verb, and says what came of each; `fail` fails it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, program: Program) -> Transition:
        return ctx.goto("work", verbs=program.verbs, said=[])

    @step
    async def work(self, ctx: Ctx, verbs: list[str], said: list[str]) -> Transition:
        if not verbs:
            return ctx.complete(" ".join(said))
        verb, rest = verbs[0], verbs[1:]
        if verb == "fail":
            return ctx.fail("as it was told")
        if verb == "next":
            return ctx.goto("work", verbs=rest, said=said)
        n = len(verbs)
        try:
            said = [*said, str(await self.done(ctx, verb, n))]
        except CommandError as error:
            said = [*said, error.failure.type]
        return ctx.goto("work", verbs=rest, said=said)

    async def done(self, ctx: Ctx, verb: str, n: int) -> Any:
        match verb:
            case "once":
                return [await ctx.tool(once, what=f"{n} {ctx.now.year > 2000}"), await ctx.tool(read, what=f"also {n}")]
            case "read":
                return await ctx.tool(read, what=str(n))
            case "keyed":
                return await ctx.tool(once, key=f"{ctx.task_id} {n % 2}", what="keyed")
            case "busy":
                return await ctx.tool(fails, what=str(n), times=1, retry=QUICK)
            case "spent":
                return await ctx.tool(fails, what=str(n), times=9, retry=QUICK)
            case "never":
                return await ctx.tool(fails, what=str(n), times=-1)
            case "takes":
                return await ctx.tool(takes, what=str(n))
            case "patched":
                return ctx.patched("a change")
            case "down":
                return await ctx.tool(fails, what=str(n), times=2, retry=BLOCKS)
            case "model":
                return await ctx.llm("say", f"something of {n}")
            case "large":
                return len(str(await ctx.tool(large, size=40_000)))
            case "sleep":
                return await ctx.sleep(0.01)
            case "part":
                return (await ctx.skill("a part", "made_up", {"verbs": ["read", "once"]})).text
            case "ask":
                return (await ctx.ask(f"word {n}", "Say something.")).text
            case _:
                return (await ctx.approve(f"gate {n}", "May I?", show={"n": n}, policy=GatePolicy())).decision


VERBS = (
    "once", "read", "keyed", "busy", "spent", "never", "takes", "patched", "down", "model", "large", "sleep", "part",
    "ask", "approve", "next", "fail",
)  # fmt: skip

MadeUpWorkflow = workflow_for(MadeUp)
