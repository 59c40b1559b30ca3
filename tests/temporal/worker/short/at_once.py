"""A skill that does what a made-up tree says: effects one after the other, at once, raced, and given up."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from refold import CommandError, Ctx, Transition, flow_skill, step, tool
from refold.effects import Never
from refold.temporal import workflow_for


@tool(effect="idempotent")
async def give(size: int) -> str:
    """A text of this many characters; below zero it fails."""
    if size < 0:
        raise Never("it will not")
    return "x" * size


TOOLS: list[Any] = [give]


class Plan(BaseModel):
    """What to do, in order. A number is a call of `give`. A list begins with a word:

    - `all`, a limit or 0, and plans, which are done at once.
    - `race`, and the sizes of model calls' answers.
    - `breaks`: an error of the code, which ends what goes on beside it, up to the next `all`.
    """

    plan: list[Any]


@flow_skill(id="at_once", input=Plan, durability="ledger")
class AtOnce:
    """Does what its plan says, and answers with what came of it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, plan: Plan) -> Transition:
        """All of the plan."""
        return ctx.complete(" ".join(await done(ctx, plan.plan)))


async def done(ctx: Ctx, plan: list[Any]) -> list[str]:
    """What came of each part of a plan."""
    return [await one_done(ctx, one) for one in plan]


async def one_done(ctx: Ctx, one: Any) -> str:
    """What came of one part of a plan."""
    try:
        match one:
            case int():
                return str(len(await ctx.tool(give, size=one)))
            case ["all", limit, *plans]:
                found = await ctx.parallel(*(done(ctx, plan) for plan in plans), limit=limit or None)
                return f"({' '.join(word for said in found for word in said)})"
            case ["race", *sizes]:
                won, said = await ctx.first(*(ctx.llm("say", "x" * size) for size in sizes))
                return f"{won}:{len(str(said))}"
            case _:
                raise LookupError("it breaks")
    except CommandError as error:
        return error.failure.type
    except LookupError:
        if one == ["breaks"]:
            raise
        return "broken"


AtOnceWorkflow = workflow_for(AtOnce)
