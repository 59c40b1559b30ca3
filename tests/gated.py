"""A payment with a gate, for the tests of whatever takes decisions."""

from __future__ import annotations

from refold import Content, Ctx, GatePolicy, Transition, flow_skill, step

POLICY = GatePolicy(approvers=("ada", "bob"), allow_unsigned=True)


@flow_skill(id="payment")
class Payment:
    """Pays once somebody has said so."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        decision = await ctx.approve("pay", "Pay this?", show={"cents": int(content.text)}, policy=POLICY)
        return ctx.complete(f"paid, says {decision.approver}")
