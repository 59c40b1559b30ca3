"""A loop of one's own: plan, weigh two views at once, act, and check the answer before the customer reads it."""

from activities.notices import send_mail
from activities.orders import find_order
from activities.payments import pay_refund
from refold.agent import Agent, Concurrent, LoopTurn, Repeat, StepStatus, Think, Together
from refold.temporal import workflow_for


async def plan(turn: LoopTurn) -> None:
    await turn.ask("Make a plan in one sentence. Call no tools yet.")


async def customer(turn: LoopTurn) -> None:
    await turn.ask("What would the customer call fair? One sentence.")


async def shop(turn: LoopTurn) -> None:
    await turn.ask("What may the shop owe at the most? One sentence.")


async def weigh(turn: LoopTurn) -> None:
    views = turn.replies
    turn.tell(f"Keep in mind. The customer: {views['views.customer']} The shop: {views['views.shop']}")


async def check(turn: LoopTurn) -> StepStatus:
    asked = (
        f"A customer wrote:\n{turn.question}\nThe answer is:\n{turn.reply}\nIs it right and kind? Begin with yes or no."
    )
    verdict = await turn.ask(asked, thread="check")
    return turn.answer() if verdict.text.lower().startswith("yes") else turn.again(f"Not yet: {verdict.text}")


LOOP = [plan, Together(customer, shop, name="views"), weigh, Repeat(Think(), Concurrent(3), name="act"), check]

CarefulDesk = Agent(
    "careful_desk",
    description="Answers customers who write about their orders, and checks each answer first.",
    instructions="You work at the order desk of a shop. Look an order up before you say anything about it.",
    tools=[find_order, pay_refund, send_mail],
    gates={"pay_refund"},
    keys={"pay_refund": "refund:{order_id}"},
    loop=LOOP,
    max_cycles=3,
    tags=["orders", "agent", "loop"],
    examples=["Order A1 cost 5 too much."],
)

CarefulDeskWorkflow = workflow_for(CarefulDesk)
