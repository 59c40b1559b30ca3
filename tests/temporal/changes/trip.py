"""A skill with one of each thing that a deployment may change; the rows of the table change its text.

The word that a task is started with says for what it waits in step `wait`: a gate, a question, a sleep or an effect.
"""

from __future__ import annotations

from refold import Artifact, Content, Ctx, GatePolicy, Transition, flow_skill, step, tool
from refold.temporal import workflow_for
from tests.temporal.upgrade.sealed_skills import doors, paid, reached

ADA = GatePolicy(approvers=("ada",), allow_unsigned=True, timeout_s=None, reminder_s=None)


@tool(effect="idempotent", name="trip.find")
def find(order: str, nights: int) -> dict[str, int]:
    """Find a room."""
    return {"cents": nights}


@tool(effect="idempotent", name="trip.hold")
async def hold(order: str) -> str:
    """Hold the room until its door opens."""
    reached[order].set()
    await doors[order].wait()
    return "held"


@tool(effect="idempotent", name="trip.book")
def book(order: str, cents: int) -> str:
    """Book the room."""
    paid[order] += 1
    return "booked"


@flow_skill(id="trip")
class Trip:
    """Finds a room, waits, and books it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        order = content.text
        found = await ctx.tool(find, id="find", order=order, nights=5)
        await ctx.llm("draft", "Describe the room.", content)
        ctx.say("There is a room.")
        ctx.hand_over(Artifact.from_text("room.txt", "5 cents a night"))
        return ctx.goto("wait", order=order, cents=found["cents"])

    @step
    async def wait(self, ctx: Ctx, order: str, cents: int) -> Transition:
        ctx.say("One moment.")
        await ctx.llm("look", "Look around.", order)
        if "-gate" in order:
            await ctx.approve("go", "Book for 5 cents?", show={"cents": cents}, policy=ADA)
        elif "-question" in order:
            await ctx.ask("when", "When?")
        elif "-sleep" in order:
            await ctx.sleep(86_400)
        else:
            await ctx.tool(hold, id="hold", order=order)
        ctx.status("on the way")
        await ctx.tool(book, id="book", order=order, cents=cents)
        await ctx.llm("praise", "Praise the room.", order)
        return ctx.goto("end", order=order)

    @step
    async def end(self, ctx: Ctx, order: str) -> Transition:
        ctx.say("It is booked.")
        await ctx.ask("rate", "How was it?")
        return ctx.complete("Thank you.")


TripWorkflow = workflow_for(Trip)
TOOLS = [find, hold, book]
