"""Tools of every kind of outcome, and skills that call them in both ways; with a codec and a storage that go away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from refold import Content, Ctx, Transition, flow_skill, step, tool
from refold.core.errors import CommandError
from refold.effects import Never, current
from refold.temporal import workflow_for
from refold.temporal.encryption import Encryption

RUNS: Counter[tuple[str, str]] = Counter()
"""How often each call of a tool was performed, by what it was to do and its command's id."""

LARGE = 60_000
"""The length of a text that storage takes."""


@dataclass
class Services:
    """Which services are away."""

    codec: bool = False
    storage: bool = False


AWAY = Services()


class Codec(PayloadCodec):
    """Encrypts, unless its key service is away."""

    def __init__(self) -> None:
        self.inner = Encryption({"k": bytes(range(32))})

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self._asked()
        return await self.inner.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self._asked()
        return await self.inner.decode(payloads)

    def _asked(self) -> None:
        if AWAY.codec:
            raise ConnectionError("the key service does not answer")


@tool(effect="at_least_once", timeout_s=300)
async def does(what: str, number: int) -> str:
    """Its receiver would see it twice."""
    RUNS[what, current().invocation_id] += 1
    current().progress(f"{what} {number}")
    if what == "fails":
        raise Never("the card is blocked")
    return "x" * LARGE if what == "writes" else f"{what} {number}"


async def walk(ctx: Ctx, content: Content) -> Transition:
    """As many steps as the message says; tells what came of each call."""
    said: list[str] = []
    for number in range(int(content.text)):
        called = [ctx.tool(does, {"what": what, "number": number}) for what in ("pays", "writes")]
        said += [shortened(one) for one in await ctx.gather(*called)]
        try:
            await ctx.tool(does, {"what": "fails", "number": number})
        except CommandError as error:
            said.append(error.failure.message)
    return ctx.complete("; ".join(said))


def shortened(text: str) -> str:
    """A long text by its length."""
    return str(len(text)) if len(text) == LARGE else text


def answered(steps: int) -> str:
    """What a task answers in the end, whatever is away meanwhile."""
    return "; ".join(f"pays {number}; {LARGE}; the card is blocked" for number in range(steps))


@flow_skill(id="walks_while_away")
class Walks:
    """Walks, each outcome in history."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return await walk(ctx, content)


@flow_skill(id="walks_in_ledger_while_away", durability="ledger")
class WalksInLedger:
    """Walks, each outcome in the ledger first."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return await walk(ctx, content)


TOOLS = [does]
WalksWorkflow = workflow_for(Walks)
WalksInLedgerWorkflow = workflow_for(WalksInLedger)
