"""Tasks to which many things happen at once, for the tests of the order in which they take them."""

from __future__ import annotations

from pydantic import BaseModel

from refold import Content, Ctx, Event, Transition, UserMessage, flow_skill, step, tool
from refold.temporal import workflow_for

HANDS = "order-hands"
"""The queue of the activity that ends when a test says so."""


class Mix(BaseModel):
    """What a task does beside the activity that a test holds.

    Attributes:
        rounds: How often it asks a person.
        rest_s: A timer before each question; 0 is none.
        part: Whether a part asks too, and is answered through the task.
    """

    rounds: int = 3
    rest_s: float = 0.0
    part: bool = False


@tool(effect="idempotent")
async def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


@flow_skill(id="mingled_part")
class MingledPart:
    """Asks once the test lets go of its activity."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.activity("held", "hold", queue=HANDS)
        answer = await ctx.ask("part", "Which part?")
        return ctx.complete(answer.text)


@flow_skill(id="mingled", input=Mix)
class Mingled:
    """Waits for an activity, a timer, a part and a person in turn: each changes what is published of the task."""

    @step(start=True)
    async def begin(self, ctx: Ctx, mix: Mix) -> Transition:
        for number in range(mix.rounds):
            await ctx.activity(f"held{number}", "hold", queue=HANDS)
            if mix.rest_s:
                await ctx.sleep(mix.rest_s, id=f"rest{number}")
            answer = await ctx.ask(f"more{number}", "Is that all?")
            await ctx.tool(double, number=len(answer.text))
            if mix.part:
                await ctx.skill(f"part{number}", MingledPart, answer)
        return ctx.complete("done")


class Asking(BaseModel):
    """The one state of a skill that asks again and again."""


@flow_skill(id="asks_again")
class AsksAgain:
    """Asks after each answer, until the answer is `stop`."""

    @staticmethod
    def initial() -> Asking:
        return Asking()

    def on_event(self, state: Asking, event: Event, ctx: Ctx) -> Transition:
        if isinstance(event, UserMessage) and event.content.text == "stop":
            return Transition.complete(state).message("stopped")
        return Transition.await_input("next", "And then?", state)


@flow_skill(id="asks_otherwise")
class AsksOtherwise(AsksAgain):
    """The same, with a change of its code that tasks take from the first answer on."""

    def on_event(self, state: Asking, event: Event, ctx: Ctx) -> Transition:
        answered = isinstance(event, UserMessage) and event.content.text != "go"
        if answered and not ctx.patched("ask otherwise"):
            return Transition.await_input("next", "And before?", state)
        return super().on_event(state, event, ctx)


@flow_skill(id="whole")
class Whole:
    """Has a part that asks again and again."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        part = await ctx.skill("part", AsksAgain, content)
        return ctx.complete(part.text)


AsksAgainWorkflow = workflow_for(AsksAgain)
AsksOtherwiseWorkflow = workflow_for(AsksOtherwise)
WholeWorkflow = workflow_for(Whole)
MingledPartWorkflow = workflow_for(MingledPart)
MingledWorkflow = workflow_for(Mingled)
