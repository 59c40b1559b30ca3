"""The skills that the tests of the page run."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel, Field

from refold import Artifact, Content, Ctx, DecisionMade, GatePolicy, RetryPolicy, Transition, flow_skill, step, tool
from refold.agent import Agent, Concurrent
from refold.effects import current
from refold.temporal import workflow_for


class Order(BaseModel):
    """What is ordered."""

    item: str = Field(min_length=1, description="What to buy.")
    amount_cents: int = Field(gt=0)
    urgent: bool = False
    color: Literal["red", "blue"] = "red"
    tags: list[str] = []
    note: str | None = None


class Reply(BaseModel):
    """An answer with fields."""

    city: str
    nights: int


@tool(effect="at_most_once", timeout_s=5)
async def charge(amount_cents: int) -> str:
    """Charges an amount."""
    return f"charged {amount_cents}"


@tool(effect="read_only", timeout_s=60)
async def count_shelves() -> str:
    """Reports how far it is, for four seconds."""
    for shelf in range(1, 11):
        current().progress(f"shelf {shelf} of 10")
        await asyncio.sleep(0.4)
    return "all counted"


@flow_skill(id="order", input=Order, tags=["shop"], examples=['{"item": "tea", "amount_cents": 500}'])
class Orders:
    """Buys something once a person has approved it."""

    @step(start=True)
    async def ask(self, ctx: Ctx, order: Order) -> Transition:
        policy = GatePolicy(on_denied="continue")
        show = {"item": order.item, "arguments": {"amount_cents": order.amount_cents, "urgent": order.urgent}}
        return ctx.await_approval(
            "purchase", f"Buy {order.item}?\nIt is for the kitchen.", show=show, policy=policy, editable=("arguments",)
        )

    @step(resume_from="ask")
    async def buy(self, ctx: Ctx, decision: DecisionMade) -> Transition:
        if not decision.approved:
            return ctx.complete(f"not bought: {decision.comment}")
        return ctx.complete(f"bought, says {decision.approver}: {decision.shown}")


@flow_skill(id="two")
class Two:
    """Two gates open together; each needs a grant."""

    @step(start=True)
    async def both(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(on_denied="continue")
        first, second = await ctx.gather(
            ctx.approve("first", "Send the first mail?", show={"to": "grace@example.org"}, policy=policy),
            ctx.approve("second", "Send the second mail?", show={"to": "alan@example.org"}, policy=policy),
        )
        return ctx.complete(f"{first.decision} {second.decision}")


@flow_skill(id="fatal")
class Fatal:
    """Two gates open together; a denial at one of them ends the task."""

    @step(start=True)
    async def both(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(ctx.approve("north", "Open the north door?"), ctx.approve("south", "Open the south door?"))
        return ctx.complete("open")


@flow_skill(id="ask")
class Asks:
    """Asks for a text, then for data."""

    @step(start=True)
    async def name(self, ctx: Ctx, content: Content) -> Transition:
        who = await ctx.ask("name", "Who travels?")
        where = await ctx.ask("trip", "Where to, and for how long?", expect=Reply)
        return ctx.complete(f"{who.text} goes to {where.city} for {where.nights} nights")


class Names(BaseModel):
    """An answer that is a list."""

    names: list[str]


@flow_skill(id="list")
class Lists:
    """Asks for a list."""

    @step(start=True)
    async def who(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(str(await ctx.ask("who", "Who?", expect=Names)))


@flow_skill(id="quiz")
class Quiz:
    """Asks twice by the same name."""

    @step(start=True)
    async def quiz(self, ctx: Ctx, content: Content) -> Transition:
        said = [(await ctx.ask("next", f"Question {number}?")).text for number in (1, 2)]
        return ctx.complete(" and ".join(said))


@flow_skill(id="guarded")
class Guarded:
    """Two of three people decide."""

    @step(start=True)
    async def pay(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(approvers=("ada", "bob", "cleo"), needed=2)
        await ctx.approve("pay", content.text, show={"cents": 5}, policy=policy)
        return ctx.complete("paid")


@flow_skill(id="beside")
class Beside:
    """A gate that bob decides, and a question, both at once."""

    @step(start=True)
    async def both(self, ctx: Ctx, content: Content) -> Transition:
        gate = ctx.approve("pay", "Pay?", policy=GatePolicy(approvers=("bob",)))
        await ctx.gather(gate, ctx.ask("when", "When?"))
        return ctx.complete("paid")


@flow_skill(id="again")
class Again:
    """The same gate twice, with another amount."""

    @step(start=True)
    async def pay(self, ctx: Ctx, content: Content) -> Transition:
        for cents in (100, 900):
            await ctx.approve("pay", "Pay?", show={"cents": cents, "to": "Grace"})
        return ctx.complete("paid twice")


@flow_skill(id="charge", retry=RetryPolicy(max_retries=0))
class Charges:
    """Charges an amount; the tests say what comes of it."""

    @step(start=True)
    async def pay(self, ctx: Ctx, content: Content) -> Transition:
        done = await ctx.tool(charge, amount_cents=int(content.text))
        return ctx.complete(done)


@flow_skill(id="counts")
class Counts:
    """Counts with a tool that reports its progress."""

    @step(start=True)
    async def count(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(count_shelves))


@flow_skill(id="echo")
class Echo:
    """Says what it was told, shows it at a gate, asks it, and hands it over."""

    @step(start=True)
    async def say(self, ctx: Ctx, content: Content) -> Transition:
        text = content.text
        ctx.say(text)
        ctx.status(text)
        ctx.hand_over(Artifact.from_text(text[:50] or "empty", text))
        await ctx.approve("gate", text, show={text[:100]: [text], "nested": {"deep": {text[:20]: text}}})
        return ctx.fail(text)


@tool(effect="idempotent", timeout_s=5)
async def mail(to: str, text: str) -> str:
    """Sends a mail."""
    if "@" not in to:
        raise ValueError(f"{to} is no address")
    return f"mail to {to}"


@flow_skill(id="letter", retry=RetryPolicy(max_retries=0))
class Letter:
    """Sends a mail to the address that it is given."""

    @step(start=True)
    async def send(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(mail, to=content.text, text="hello"))


Mailer = Agent("mailer", instructions="Write to people.", tools=[mail, charge], orchestrator=Concurrent(5))

OrdersWorkflow = workflow_for(Orders)
TwoWorkflow = workflow_for(Two)
FatalWorkflow = workflow_for(Fatal)
AsksWorkflow = workflow_for(Asks)
ListsWorkflow = workflow_for(Lists)
QuizWorkflow = workflow_for(Quiz)
GuardedWorkflow = workflow_for(Guarded)
BesideWorkflow = workflow_for(Beside)
AgainWorkflow = workflow_for(Again)
ChargesWorkflow = workflow_for(Charges)
CountsWorkflow = workflow_for(Counts)
EchoWorkflow = workflow_for(Echo)
LetterWorkflow = workflow_for(Letter)
MailerWorkflow = workflow_for(Mailer)

SKILLS = (Orders, Two, Fatal, Asks, Lists, Quiz, Guarded, Beside, Again, Charges, Counts, Echo, Letter, Mailer)
