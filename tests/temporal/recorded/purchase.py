"""A skill that says, shows and sends everything that a skill can; the tests change its text and deploy it again."""

from __future__ import annotations

from refold import Artifact, Content, Ctx, GatePolicy, Transition, flow_skill, step, tool
from refold.temporal import workflow_for

PAID: list[tuple[str, int]] = []  # what the tool paid, to whom
BUSY: set[str] = set()  # who cannot be paid just now


@tool(effect="idempotent")
def pay(to: str, cents: int) -> str:
    """Pay."""
    if to in BUSY:
        raise ConnectionError("busy")
    PAID.append((to, cents))
    return "receipt"


@flow_skill(id="recorded_purchase")
class Purchase:
    """Drafts, shows, lets a person decide, asks when, and pays."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        order = content.text
        await ctx.llm("draft", "Describe the order.", content)
        ctx.say("Here is what will be bought.")
        ctx.status("drafted")
        ctx.hand_over(Artifact.from_text("order.txt", "5 cents to the shop, for " + order))
        policy = GatePolicy(approvers=("ada",), allow_unsigned=True, timeout_s=None, reminder_s=None)
        await ctx.approve("pay", "Pay 5 cents to the shop?", show={"to": "the shop", "cents": 5}, policy=policy)
        await ctx.ask("when", "When?")
        await ctx.tool(pay, id="paid", to=order, cents=5)
        await ctx.ask("rate", "How was it?")
        return ctx.complete("Paid 5 cents.")


PurchaseWorkflow = workflow_for(Purchase)
