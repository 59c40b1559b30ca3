"""The skills of the tasks that the page shows in its benchmark."""

from __future__ import annotations

from refold import Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for


@flow_skill(id="bench-gate")
class Gate:
    """Waits for a person."""

    @step(start=True)
    async def ask(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("pay", "Pay this?", show={"cents": 5, "to": {"name": "Grace", "city": "Rome"}})
        return ctx.complete("paid")


@flow_skill(id="bench-done")
class Done:
    """Is done at once."""

    @step(start=True)
    async def end(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("done")


@flow_skill(id="bench-long")
class Long:
    """Asks again and again."""

    @step(start=True)
    async def talk(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("more", "And then?")

    @step(resume_from="talk")
    async def heard(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("talk", content=content)


GateWorkflow = workflow_for(Gate)
DoneWorkflow = workflow_for(Done)
LongWorkflow = workflow_for(Long)

SKILLS = (Gate, Done, Long)
