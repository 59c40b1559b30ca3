"""A codec whose key service goes away, a tool that takes it away, and a skill that calls it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from refold import Content, Ctx, Transition, flow_skill, step, tool
from refold.effects import Never, current
from refold.temporal import workflow_for
from refold.temporal.encryption import Encryption

REFUSALS = 6
"""How often the codec refuses before it is back: more often than Temporal repeats an activity at once."""

SAID = (b"paid", b"half of it", b"the card is blocked")
"""What is in that which the codec refuses to encrypt; neither a task's answers nor its commands have it meanwhile."""

RUNS: Counter[str] = Counter()
"""How often the tool ran, by what it was to do."""


class Away(PayloadCodec):
    """Encrypts, unless its key service is away, which is back after some refusals."""

    def __init__(self) -> None:
        self.inner = Encryption({"k": bytes(range(32))})
        self.refusals = Counter[str]()
        self.refused = asyncio.Event()

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if any(said in one.data for one in payloads for said in SAID):
            self.asked("encode")
        return await self.inner.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.asked("decode")
        return await self.inner.decode(payloads)

    def asked(self, what: str) -> None:
        if self.refusals[what]:
            self.refusals[what] -= 1
            self.refused.set()
            raise ConnectionError("the key service does not answer")


CODEC = Away()


@tool(effect="at_least_once", timeout_s=300)
async def pays(how: str) -> str:
    """Its receiver would see it twice."""
    RUNS[how] += 1
    if how in ("beats", "reports"):
        CODEC.refusals["encode"] = REFUSALS
        if how == "beats":
            activity.heartbeat("half of it")
        else:
            current().progress("half of it")
        await CODEC.refused.wait()
    CODEC.refusals["encode"] = REFUSALS
    if how == "fails":
        raise Never("the card is blocked")
    return f"paid: {how}"


@flow_skill(id="pays_while_away")
class Pays:
    """Pays in the way that the message names."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(pays, {"how": content.text}))


TOOLS = [pays]
PaysWorkflow = workflow_for(Pays)
