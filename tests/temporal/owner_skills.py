"""A task that makes one keyed call, for the tests of whose effect it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

from refold import Ctx, Transition, flow_skill, step, tool
from refold.agent import Agent, Cache
from refold.effects import Never, current
from refold.temporal import workflow_for

PERFORMED: list[tuple[str, str]] = []
"""The effects that took place: the item, and the idempotency key that the receiver saw."""


def performed(item: str) -> str:
    call = current()
    PERFORMED.append((item, call.idempotency_key))
    return f"{item} for {call.task_id}"


@tool(effect="read_only")
async def look_up(item: str) -> str:
    return performed(item)


@tool(effect="idempotent")
async def put(item: str) -> str:
    return performed(item)


@tool(effect="at_least_once")
async def mail(item: str) -> str:
    return performed(item)


@tool(effect="at_most_once")
async def order(item: str) -> str:
    return performed(item)


@tool(effect="idempotent")
async def give_back(item: str) -> None:
    performed(f"undo {item}")
    if item.startswith("stuck"):
        raise Never("it does not come off")


@tool(effect="compensate", undo=give_back)
async def book(item: str) -> str:
    return performed(item)


BY_POLICY: dict[str, Callable[..., Any]] = {
    "read_only": look_up,
    "idempotent": put,
    "at_least_once": mail,
    "at_most_once": order,
    "compensate": book,
}
TOOLS = [*BY_POLICY.values(), give_back]


class Call(BaseModel):
    """One call.

    Attributes:
        policy: Of which tool.
        item: Its argument.
        key: Its business key.
        scope: Whose tasks share the key.
        times: How often it is made.
        asks: The task asks, after it.
        fails: The task fails after it, so that the effect is compensated.
    """

    policy: str
    item: str
    key: str | None = None
    scope: Literal["owner", "all"] = "owner"
    times: int = 1
    asks: bool = False
    fails: bool = False


@flow_skill(id="keyed", input=Call)
class Keyed:
    """Makes the call, and says what it brought."""

    @step(start=True)
    async def begin(self, ctx: Ctx, call: Call) -> Transition:
        found = ""
        for _ in range(call.times):
            found = await ctx.tool(BY_POLICY[call.policy], item=call.item, key=call.key, key_scope=call.scope)
        if call.asks:
            await ctx.ask("well", "Well?")
        return ctx.fail("no") if call.fails else ctx.complete(found)


Cached = Agent(
    "cached",
    instructions="Look words up.",
    tools=[look_up],
    middleware=[Cache(tools=["look_up"], scope="activity")],
)

KeyedWorkflow = workflow_for(Keyed)
CachedWorkflow = workflow_for(Cached)
