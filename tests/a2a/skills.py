"""Skills of the gateway's tests, small enough to say in one line what each is for, and their tools."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from pydantic import BaseModel

from refold import Artifact, Content, Ctx, GatePolicy, Part, Transition, flow_skill, step, tool
from refold.temporal import workflow_for

gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""What `held` waits for, by name; set by tests, in the process where the worker runs, too."""


@tool(effect="idempotent")
async def held(name: str) -> str:
    """Comes back when the test lets it."""
    await gates[name].wait()
    return name


@flow_skill(id="echo", description="Says back what it hears.", tags=["test"], examples=["Hello"])
class Echo:
    @step(start=True)
    async def say(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(Content(parts=content.parts), [Artifact(name="echo", parts=content.parts)])


class Answer(BaseModel):
    """A number, as data."""

    number: int


@flow_skill(id="ask", description="Asks twice: for anything, then for a number as data.")
class Ask:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        name = await ctx.ask("name", "Who are you?")
        answer = await ctx.ask("number", "How many?", expect=Answer)
        return ctx.complete(f"{name.text}: {answer.number}")


class Order(BaseModel):
    """What the gate is about."""

    item: str


@flow_skill(id="buy", description="Buys what it is told to, once someone has approved it.", input=Order)
class Buy:
    @step(start=True)
    async def begin(self, ctx: Ctx, order: Order) -> Transition:
        policy = GatePolicy(approvers=("boss",) if order.item == "yacht" else (), sign_in=order.item == "club card")
        return ctx.await_approval("buy", f"Buy {order.item}?", show=order.model_dump(), policy=policy, order=order)

    @step(resume_from="begin")
    async def bought(self, ctx: Ctx, order: Order) -> Transition:
        return ctx.complete(f"Bought {order.item}.", [Artifact.from_data("receipt", {"item": order.item})])


@flow_skill(id="picky", description="Rejects what is not polite, and fails where it is told to.")
class Picky:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        if "fail" in content.text:
            return ctx.fail("it went wrong")
        return ctx.complete("At your service.") if "please" in content.text else ctx.reject("Say please.")


@flow_skill(id="wait", description="Waits for the test.")
class Waits:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        ctx.say("I am on it.")
        return ctx.complete(await ctx.tool(held, name=content.text))


@flow_skill(id="later", description="Waits for the test, then asks.")
class Later:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(held, name=content.text)
        return ctx.complete(await ctx.ask("name", "Who?"))


@flow_skill(id="steered", description="Waits for the test until a message stops it.")
class Steered:
    @step(start=True, on_interrupt="stop")
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.sleep(3600)
        return ctx.complete("Never.")

    @step
    async def stop(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(f"Stopped: {content.text}")


@flow_skill(id="files", description="Hands over a file by value, one by address, and data.")
class Files:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        inline = Part(raw=b"\x00\xff", filename="two.bin", media_type="application/octet-stream")
        linked = Part(url="https://example.org/a.png", media_type="image/png")
        return ctx.complete("Here.", [Artifact(name="all", parts=(inline, linked, Part(data={"n": 7})))])


@flow_skill(id="copy", description="Hands back the files it is given.", input_modes=["*/*"], output_modes=["*/*"])
class Copy:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("Here.", [Artifact(name="copy", parts=content.parts)])


@flow_skill(id="report", description="Hands over a report in chunks, as the test lets it.")
class Report:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        for number, word in enumerate(words := content.text.split()):
            await ctx.tool(held, name=word)
            last = number == len(words) - 1
            ctx.hand_over(Artifact.from_text("report", word, append=True, last_chunk=last))
        return ctx.complete()


@flow_skill(id="poet", description="Says what a model says.")
class Poet:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.llm("verse", "Write a poem.", content.text))


@flow_skill(id="usher", description="Chooses a skill by a word of the message, or asks back.")
class Usher:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        chosen = next((word for word in content.text.split() if word in ("echo", "ask")), None)
        return ctx.complete("What can I do for you?" if chosen is None else Content.from_data({"skill": chosen}))


ALL = [Echo, Ask, Buy, Picky, Waits, Later, Files, Poet, Copy, Report]
TOOLS = [held]
ANSWERS: dict[str, object] = {}

EchoWorkflow = workflow_for(Echo)
AskWorkflow = workflow_for(Ask)
BuyWorkflow = workflow_for(Buy)
PickyWorkflow = workflow_for(Picky)
WaitsWorkflow = workflow_for(Waits)
LaterWorkflow = workflow_for(Later)
SteeredWorkflow = workflow_for(Steered)
FilesWorkflow = workflow_for(Files)
PoetWorkflow = workflow_for(Poet)
CopyWorkflow = workflow_for(Copy)
ReportWorkflow = workflow_for(Report)
UsherWorkflow = workflow_for(Usher)
