"""An order desk: an agent with four tools, a gate before every refund, and a guardrail before the customer."""

import re

from activities import facts
from activities.notices import send_mail
from activities.orders import find_order
from activities.payments import pay_refund
from refold import GateKind, GatePolicy
from refold.agent import Agent, Block, Concurrent, Guardrail
from refold.temporal import workflow_for

INSTRUCTIONS = """You work at the order desk of a shop, and answer customers who write about their orders.

Look an order up before you say anything about it. Refund what was paid too much, never more than was paid, and write
the customer a mail when you have. If a person denies a refund, say so kindly and do not ask for it again."""

_CARD = re.compile(r"\b(?:\d[ -]?){13,19}\b")


def no_card_numbers(text: str) -> Block | None:
    """Block a reply with a card number, whatever a tool has told the model."""
    return Block("it names a card's number") if _CARD.search(text) else None


OrderDesk = Agent(
    "order_desk",
    description="Answers customers who write about their orders, and refunds what was paid too much.",
    instructions=INSTRUCTIONS,
    tools=[find_order, facts.FACTS["look_up_route"], pay_refund, send_mail],
    gates={"pay_refund": GatePolicy(kind=GateKind.RISK)},
    keys={"pay_refund": "refund:{order_id}"},
    orchestrator=Concurrent(3),
    middleware=[Guardrail(no_card_numbers, name="card numbers", instead="I cannot tell you that here.")],
    max_cycles=8,
    tags=["orders", "agent"],
    examples=["Order A1 arrived broken. Can I have my money back?"],
)

OrderDeskWorkflow = workflow_for(OrderDesk)
