"""A codec whose key service goes away, a tool that takes it away, and a skill that calls it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RetryPolicy
from temporalio.converter import PayloadCodec

from refold import Content, Ctx, Transition, flow_skill, step, tool
from refold.effects import Never, current
from refold.effects.short.local import HOLD_S
from refold.engine import PayloadTooLarge
from refold.temporal import workflow_for
from refold.temporal.encryption import Encryption

REFUSALS = 6
"""How often the codec refuses before it is back: more often than Temporal repeats an activity at once."""

MANY = 10**9
"""How often a codec refuses that does not come back."""

SAID = (b"paid", b"half of it", b"the card is blocked")
"""What is in that which the codec refuses to encrypt; neither a task's answers nor its commands have it meanwhile."""

SPARED = {"returns, encrypted twice": 1, "fails, encrypted twice": 2, "goes over": 1}
"""How many values the codec encrypts before it goes away: all that a result, or a failure, consists of."""

ERRORS = {
    "and the codec's own call is canceled": asyncio.CancelledError(),
    "too long": PayloadTooLarge("the key service takes 4,096 bytes"),
}
"""What the codec raises, by how the way ends; else its key service does not answer."""

RUNS: Counter[str] = Counter()
"""How often the tool ran, by what it was to do."""


class Away(PayloadCodec):
    """Encrypts, unless its key service is away, which is back after some refusals."""

    def __init__(self) -> None:
        self.inner = Encryption({"k": bytes(range(32))})
        self.refusals = Counter[str]()
        self.spared = 0
        self.slow_s = 0.0
        self.error: BaseException = ConnectionError("the key service does not answer")
        self.refused = asyncio.Event()
        self.turned = asyncio.Event()

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if any(said in one.data for one in payloads for said in SAID):
            slow_s, self.slow_s = self.slow_s, 0.0  # for one value: a workflow task has two seconds
            await asyncio.sleep(slow_s)
            self.asked("encode")
        if any(b"page 7" in one.data for one in payloads):
            self.turned.set()
        return await self.inner.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.asked("decode")
        return await self.inner.decode(payloads)

    def asked(self, what: str) -> None:
        if self.spared:
            self.spared -= 1
        elif self.refusals[what]:
            self.refusals[what] -= 1
            self.refused.set()
            raise self.error


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
    if how.startswith("goes over"):
        await asyncio.sleep(2 * HOLD_S)
    CODEC.error = ERRORS.get(how.rpartition(", ")[2], ConnectionError("no answer"))
    CODEC.spared = SPARED.get(how, 0)
    CODEC.refusals["encode"] = (
        1 if how.endswith("twice") else MANY if how.endswith(("for ever", "too long")) else REFUSALS
    )
    if "fails" in how:
        raise Never("the card is blocked")
    return f"paid: {how}"


@flow_skill(id="pays_while_away")
class Pays:
    """Pays in the way that the message names."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(pays, {"how": content.text}))


@flow_skill(id="pays_in_ledger_while_away", durability="ledger")
class PaysInLedger:
    """Pays within a workflow task, unless that takes longer than a workflow task may be held open."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(pays, {"how": content.text}))


@activity.defn
async def copies() -> str:
    """Goes on by its heartbeats, as an activity that was there before refold does."""
    went_on_from = ", ".join(activity.info().heartbeat_details)
    if activity.info().attempt == 1:
        activity.heartbeat("page 7")
        await CODEC.turned.wait()
    CODEC.refused.clear()
    CODEC.refusals["encode"] = 1
    activity.heartbeat("half of it")
    await CODEC.refused.wait()
    if activity.info().attempt < ENDS_WELL:
        raise ConnectionError("its worker is lost")
    return went_on_from


SILENT_S = 1.0
"""For how long `prints` may be silent, in seconds."""


@activity.defn
def prints(how: str) -> str:
    """Runs in a thread; what it returns is encrypted after a longer time than it may be silent for, or never."""
    RUNS["prints"] += 1
    if how == "slowly":
        CODEC.slow_s = 2 * SILENT_S
    else:
        CODEC.refusals["encode"] = MANY if how == "never" else 40
    return "paid"


@workflow.defn(sandboxed=False)
class Printing:
    """Another one."""

    @workflow.run
    async def run(self, how: str) -> str:
        """Have it printed."""
        return await workflow.execute_activity(
            prints,
            how,
            start_to_close_timeout=timedelta(minutes=5),
            heartbeat_timeout=timedelta(seconds=SILENT_S),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=1)),
        )


ENDS_WELL = 3
"""The attempt of `copies` that ends well. The one before it sends no heartbeat that can be encrypted."""


@workflow.defn(sandboxed=False)
class Copying:
    """A workflow that was there before refold."""

    @workflow.run
    async def run(self) -> str:
        """Have it copied."""
        return await workflow.execute_activity(
            copies,
            start_to_close_timeout=timedelta(minutes=5),
            heartbeat_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=1)),
        )


TOOLS = [pays]
PaysWorkflow = workflow_for(Pays)
PaysInLedgerWorkflow = workflow_for(PaysInLedger)
