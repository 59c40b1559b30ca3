"""Forty steps: a model decides forty times, calls twelve tools, charges a card once and writes one mail.

Each step is a thought and a tool call. The next step sees the tool's result as its observation, and the last one
declares the end. The journal is the log of these steps, and the state is folded from it: nothing else needs to be saved
or resumed.
"""

from typing import Any, Literal

from pydantic import BaseModel

from activities.facts import FACTS
from activities.notices import send_mail
from activities.payments import charge_card
from refold import CommandError, Ctx, Transition, flow_skill, step
from refold.core.steps.calls import Call
from refold.temporal import workflow_for

STEPS = 40
PROMPT = (
    "You buy what the order needs. Each step, think, then name one tool; charge the card and write the mail once "
    "each. In the last step name no tool and say the result."
)

Tool = Literal[
    "look_up_stock",
    "look_up_price",
    "look_up_weight",
    "look_up_size",
    "look_up_route",
    "look_up_weather",
    "look_up_customs",
    "look_up_rating",
    "look_up_warranty",
    "look_up_discount",
    "charge_card",
    "send_mail",
]


class Errand(BaseModel):
    """What is to be bought, and for whom."""

    order_id: str
    amount_cents: int
    customer: str
    steps: int = STEPS


class Proposal(BaseModel):
    """What the model wants: a tool, or the end."""

    thought: str
    tool: Tool | None = None
    result: str | None = None


class Observation(BaseModel):
    """What came of a tool call; a failure is an observation, too."""

    tool: Tool
    value: int | str


@flow_skill(id="forty_steps", input=Errand)
class FortySteps:
    """Runs an errand in forty decisions of a model."""

    @step(start=True)
    async def begin(self, ctx: Ctx, errand: Errand) -> Transition:
        return ctx.goto("decide", errand=errand, seen=[])

    @step
    async def decide(self, ctx: Ctx, errand: Errand, seen: list[Observation]) -> Transition:
        proposal = await ctx.llm("decide", PROMPT, brief(errand, seen), expect=Proposal)
        if proposal.result is not None:
            return ctx.complete(proposal.result)
        if proposal.tool is None:
            return ctx.fail(f"protocol error: step {len(seen) + 1} names neither a tool nor a result")
        try:
            came = await call_of(ctx, errand, proposal.tool)
            value = came if isinstance(came, int) else "done"
        except CommandError as error:
            value = f"failed: {error.failure.message}"
        return ctx.goto("decide", errand=errand, seen=[*seen, Observation(tool=proposal.tool, value=value)])


def brief(errand: Errand, seen: list[Observation]) -> str:
    """The model's input: which step this is, and the observations so far."""
    lines = [f"Step {len(seen) + 1} of {errand.steps}", f"Order {errand.order_id}, {errand.amount_cents} cents"]
    return "\n".join([*lines, *(f"{one.tool}: {one.value}" for one in seen)])


def call_of(ctx: Ctx, errand: Errand, tool: Tool) -> Call[Any]:
    """The call that a proposal stands for. Amounts and addresses come from the errand, never from the model."""
    match tool:
        case "charge_card":
            key = f"charge:{errand.order_id}"
            return ctx.tool(charge_card, order_id=errand.order_id, amount_cents=errand.amount_cents, key=key)
        case "send_mail":
            return ctx.tool(send_mail, to=errand.customer, subject=f"Order {errand.order_id}", text="It is on its way.")
        case lookup:
            return ctx.tool(FACTS[lookup], order_id=errand.order_id)


FortyStepsWorkflow = workflow_for(FortySteps)
