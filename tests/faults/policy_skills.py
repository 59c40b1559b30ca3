"""Skills that each say what becomes of their effects when a worker is lost, and what becomes of unknown outcomes."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from refold import CommandError, Ctx, RetryPolicy, Transition, flow_skill, step, tool
from refold.temporal import Profile, workflow_for
from tests.faults.skills import LOOK_EVERY_S, Way, note, through


@tool(effect="at_most_once")
def pay_blindly(gate: str) -> str:
    """Pays once the file `gate` exists. Nobody can look up whether it did."""
    note("begun")
    while not Path(gate).exists():
        time.sleep(LOOK_EVERY_S)
    return "paid"


@flow_skill(id="policies_told", input=Way, retry=RetryPolicy(on_unknown="fail"))
class Told:
    """Is told where nobody knows, and goes on."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        try:
            return ctx.complete(await ctx.tool(pay_blindly, gate=way.gate))
        except CommandError as error:
            return ctx.complete(f"{error.failure.kind}: {error.failure.type}")


@flow_skill(id="policies_asks", input=Way)
class Asks:
    """Asks a person where nobody knows."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        return ctx.complete(await ctx.tool(pay_blindly, gate=way.gate))


@flow_skill(id="policies_patient", input=Way)
class Patient:
    """Gives a worker ten seconds to come back."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        return ctx.complete(await ctx.tool(pay_blindly, gate=way.gate))


@flow_skill(id="policies_repeats", input=Way, retry=RetryPolicy(on_unknown="repeat"))
class Repeats:
    """Repeats a call that does no harm."""

    @step(start=True)
    async def begin(self, ctx: Ctx, way: Way) -> Transition:
        return ctx.complete(await ctx.tool(through, gate=way.gate))


HASTY = Profile(name="hasty", heartbeat=timedelta(seconds=1), max_attempts=2)

ToldWorkflow = workflow_for(Told)
AsksWorkflow = workflow_for(Asks, recovery="fast-recovery")
PatientWorkflow = workflow_for(Patient, recovery="default")
RepeatsWorkflow = workflow_for(Repeats, recovery=HASTY)
TOOLS = [pay_blindly, through]
