"""Skills and tools of the fault tests. The tools note what they do in a ledger that outlives their process."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from pydantic import BaseModel

from refold import CommandError, Ctx, Transition, flow_skill, step, tool
from refold.effects import Done, NotDone, current
from refold.temporal import workflow_for

LEDGER = "FAULTS_LEDGER"
"""The environment variable that names the ledger's file."""

LOOK_EVERY_S = 0.02


def note(what: str) -> None:
    """One line, written at once and as a whole: O_APPEND keeps those of several processes apart."""
    call = current()
    line = f'{{"what":"{what}","invocation_id":"{call.invocation_id}","attempt":{call.attempt}}}\n'
    with Path(os.environ[LEDGER]).open("a") as ledger:
        ledger.write(line)


@tool(effect="idempotent")
async def through(gate: str) -> str:
    """Waits until the file `gate` exists."""
    note("begun")
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process opens it
        await asyncio.sleep(LOOK_EVERY_S)
    note("done")
    return "through"


@tool(effect="idempotent")
async def hold_up(seconds: float) -> str:
    """Keeps the worker's event loop busy, as careless code does."""
    note("begun")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    note("done")
    return "held up"


@tool(effect="idempotent")
async def produce(size: int) -> str:
    """A text of this many characters."""
    note("begun")
    return "x" * size


def paid(key: str) -> Done | NotDone:
    """Whether the ledger has the payment."""
    call, told = current().invocation_id, Path(os.environ[LEDGER]).read_text().splitlines()
    found = any('"paid"' in line and f'"{call}"' in line for line in told)
    return Done("paid") if found else NotDone()


@tool(effect="at_most_once", probe=paid)
def pay(gate: str) -> str:
    """Pays in a thread, once the file `gate` exists."""
    note("begun")
    while not Path(gate).exists():
        time.sleep(LOOK_EVERY_S)
    note("paid")
    return "paid"


@tool(effect="at_most_once", probe=paid, timeout_s=120)
def pay_slowly(seconds: float) -> str:
    """Pays in a thread, after so long."""
    note("begun")
    time.sleep(seconds)
    note("paid")
    return "paid"


@tool(effect="at_most_once")
def pay_unseen(gate: str) -> str:
    """Pays at once, and returns once the file `gate` exists; nobody can look whether it has paid."""
    note("paid")
    while not Path(gate).exists():
        time.sleep(LOOK_EVERY_S)
    return "paid"


class Way(BaseModel):
    gate: str
    count: int = 1


class Slowly(BaseModel):
    seconds: float


@flow_skill(id="gated", input=Way)
class Gated:
    """Goes through a gate, several abreast, then is done."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        came = await ctx.gather(*(ctx.tool(through, gate=way.gate) for _ in range(way.count)))
        return ctx.complete(", ".join(came))


@flow_skill(id="pays_once", input=Way)
class PaysOnce:
    """Pays once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        return ctx.complete(await ctx.tool(pay, gate=way.gate))


@flow_skill(id="pays_unseen", input=Way)
class PaysUnseen:
    """Pays once, where nobody can look."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        return ctx.complete(await ctx.tool(pay_unseen, gate=way.gate))


@flow_skill(id="pays_slowly", input=Slowly)
class PaysSlowly:
    """Pays once, which takes its time."""

    @step(start=True)
    async def begin(self, ctx: Ctx, slowly: Slowly) -> Transition:
        return ctx.complete(await ctx.tool(pay_slowly, seconds=slowly.seconds))


@flow_skill(id="stairs", input=Way)
class Stairs:
    """Goes up, a step at a time, each through a gate of its own."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        for number in range(1, way.count + 1):
            await ctx.tool(through, gate=f"{way.gate}/{number}")
        return ctx.complete("up")


class Crowd(BaseModel):
    gate: str
    seconds: float
    beside: int


@flow_skill(id="crowded", input=Crowd)
class Crowded:
    """Runs a tool that holds up its worker beside tools that do not."""

    @step(start=True)
    async def begin(self, ctx: Ctx, crowd: Crowd) -> Transition:
        beside = [ctx.tool(through, gate=crowd.gate) for _ in range(crowd.beside)]
        came = await ctx.gather(ctx.tool(hold_up, seconds=crowd.seconds), *beside)
        return ctx.complete(", ".join(came))


@flow_skill(id="asks")
class Asks:
    """Asks one question, and says how long the answer was."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        answer = await ctx.ask("word", "Say something.")
        return ctx.complete(f"{len(answer.text)} characters")


class Order(BaseModel):
    size: int
    catch: bool = False
    part: bool = False


@flow_skill(id="buys", input=Order)
class Buys:
    """Gets a large result from a tool, after a question, and may be prepared for its failure."""

    @step(start=True)
    async def begin(self, ctx: Ctx, order: Order) -> Transition:
        await ctx.ask("word", "Shall I?")
        try:
            came = await ctx.tool(produce, size=order.size)
        except CommandError as error:
            if not order.catch:
                raise
            return ctx.complete(f"it is well: {error.failure.type}")
        return ctx.complete(f"{len(came)} characters")


@flow_skill(id="repeats", input=Order)
class Repeats:
    """Says an answer twice, to a part or else to a model, and may be prepared for the failure."""

    @step(start=True)
    async def begin(self, ctx: Ctx, order: Order) -> Transition:
        said = (await ctx.ask("word", "Say something.")).text
        try:
            await (ctx.skill("part", "asks", said + said) if order.part else ctx.llm("think", said + said))
        except CommandError as error:
            if not order.catch:
                raise
            return ctx.complete(f"it is well: {error.failure.type}")
        return ctx.complete("said twice")


@flow_skill(id="listens")
class Listens:
    """Asks for another word until one is the last."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        number = 0
        while (await ctx.ask(f"word {number}", "Say something.")).text != "end":
            number += 1
        return ctx.complete(f"{number} words")


GatedWorkflow = workflow_for(Gated)
PaysOnceWorkflow = workflow_for(PaysOnce)
PaysUnseenWorkflow = workflow_for(PaysUnseen)
PaysSlowlyWorkflow = workflow_for(PaysSlowly)
StairsWorkflow = workflow_for(Stairs)
CrowdedWorkflow = workflow_for(Crowded)
AsksWorkflow = workflow_for(Asks)
BuysWorkflow = workflow_for(Buys)
RepeatsWorkflow = workflow_for(Repeats)
ListensWorkflow = workflow_for(Listens)
