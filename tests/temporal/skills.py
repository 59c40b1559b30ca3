"""Skills of the tests, small enough to say in one line what each is for, and the workflows they call.

All of it is immutable, so that the tasks of a worker share one copy: imported again for each task, it would take a
fifth of the CPU of the tests on a server.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import activity, workflow

from refold import Artifact, Cmd, CommandError, Content, Ctx, Transition, UserMessage, flow_skill, step
from refold.core.events import Event
from refold.temporal import workflow_for
from tests.temporal.tools import add, broken, endless, flaky, large


@activity.defn
async def existing_activity(a: int, b: int) -> int:
    """An activity that was there before refold."""
    return a * b


@workflow.defn
class ExistingWorkflow:
    """A workflow that was there before refold."""

    @workflow.run
    async def run(self, name: str) -> str:
        return f"Dear {name}"


@workflow.defn
class BytesWorkflow:
    """A workflow that returns what is no JSON, as those of other programs may."""

    @workflow.run
    async def run(self, *given: Any) -> bytes:
        return b"\x00\xff"


TOOLS: tuple[Any, ...] = (add, flaky, broken, endless, large)


@flow_skill(id="adder")
class Adder:
    """Several tools at once, by function."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        sums = await ctx.gather(*(ctx.tool(add, a=n, b=n) for n in range(5)))
        return ctx.complete(f"sums: {sums}")


@flow_skill(id="talk")
class Talk:
    """Asks twice, once for a name and once for a number that must be one."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        name = await ctx.ask("name", "Who are you?")
        age = await ctx.ask("age", "How old are you?", expect=Age)
        return ctx.complete(f"{name.text} is {age.years}", [Artifact.from_data("age", {"years": age.years})])


class Age(BaseModel):
    years: int


@flow_skill(id="patient")
class Patient:
    """Sleeps a day."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        before = ctx.now
        await ctx.sleep(timedelta(days=1).total_seconds())
        return ctx.complete(f"{(ctx.now - before).total_seconds():.0f}")


class Tries(BaseModel):
    key: str
    failures: int


@flow_skill(id="stubborn", input=Tries)
class Stubborn:
    """Calls a tool that fails as often as asked."""

    @step(start=True)
    async def begin(self, ctx: Ctx, tries: Tries) -> Transition:
        return ctx.complete(f"call {await ctx.tool(flaky, who=tries.key, failures=tries.failures)}")


@flow_skill(id="caught")
class Caught:
    """Catches a failure and goes on."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        try:
            await ctx.tool(broken)
        except CommandError as error:
            return ctx.complete(f"it is well: {error.failure.message}")
        return ctx.fail("nothing was raised")


@flow_skill(id="uncaught")
class Uncaught:
    """Lets a failure through."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        await ctx.tool(broken)
        return ctx.complete()


@flow_skill(id="uncaught_beside")
class UncaughtBeside:
    """Lets a failure through once a part has its answers."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(ctx.tool(broken), ctx.skill("talk", Talk, content))
        return ctx.complete()


@flow_skill(id="busy")
class Busy:
    """Waits for a tool that never ends."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(endless, who=content.text)
        return ctx.complete()


@flow_skill(id="parent")
class Parent:
    """Runs another skill, and an activity and a workflow that were there before."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        talk, product, letter = await ctx.gather(
            ctx.skill("talk", Talk, content),
            ctx.activity("product", "existing_activity", 6, 7),
            ctx.workflow("letter", "ExistingWorkflow", "Ada"),
        )
        return ctx.complete(f"{talk.text}; {product}; {letter}", list(talk.artifacts))


@flow_skill(id="hoarder")
class Hoarder:
    """Gets three megabytes from a tool."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        text = await ctx.tool(large, size=3_000_000)
        return ctx.complete(f"{len(text)}")


@flow_skill(id="raises")
class Raises:
    """A bug: raises at the second message."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        reply = await ctx.ask("number", "A number?")
        return ctx.complete(f"{1 / int(reply.text)}")


@flow_skill(id="watches_clock")
class WatchesClock:
    """A bug: reads the clock."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.complete(f"{datetime.now(UTC)}")


@flow_skill(id="runs_in_circles")
class RunsInCircles:
    """A bug: two steps that go to one another."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.goto("again")

    @step
    async def again(self, ctx: Ctx) -> Transition:
        return ctx.goto("again")


@flow_skill(id="forgets_await")
class ForgetsAwait:
    """A bug: makes a call and does not await it."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        ctx.tool(add, a=1, b=1)  # type: ignore[unused-awaitable]  # the bug
        return ctx.complete()


class Open(BaseModel):
    """The one state of the reducers below."""


@flow_skill(id="ignores")
class Ignores:
    """A bug: a reducer without a case for its last result."""

    @staticmethod
    def initial() -> Open:
        return Open()

    def on_event(self, state: Open, event: Event, ctx: Ctx) -> Transition:
        if isinstance(event, UserMessage):
            return Transition.to(state).cmd(Cmd.tool("sum", add, {"a": 1, "b": 1}))
        return Transition.ignore(state)


@flow_skill(id="counts")
class Counts:
    """A reducer that answers each message and waits for the next, for ever."""

    @staticmethod
    def initial() -> Open:
        return Open()

    def on_event(self, state: Open, event: Event, ctx: Ctx) -> Transition:
        if isinstance(event, UserMessage) and event.content.text == "stop":
            return Transition.complete(state).message("stopped")
        return Transition.await_input("next", "And then?", state)


@flow_skill(id="keeps_working")
class KeepsWorking:
    """Works on while a part waits for a person."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        async def work() -> int:
            total = 0
            for number in range(8):
                total = await ctx.tool(add, a=total, b=number)
            return total

        async def part() -> str:
            return (await ctx.skill("part", Counts, content)).text

        total, said = await ctx.parallel(work(), part())
        return ctx.complete(f"{total} {said}")


@flow_skill(id="gated")
class Gated:
    """Asks anybody for leave."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        await ctx.approve("leave", "May I?", show={"amount": 5})
        return ctx.complete("done")


@flow_skill(id="calls_itself")
class CallsItself:
    """A bug: a skill whose part is itself, and so on."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        part = await ctx.skill("again", CallsItself, "go")
        return ctx.complete(part.text)


@flow_skill(id="elsewhere")
class Elsewhere:
    """Calls what other programs do: nobody of refold serves the queue. Says of each call how it failed."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        queue = content.text
        calls: list[Any] = [
            ctx.llm("llm", "Say something.", queue=queue),
            ctx.chat("chat", "Say something.", queue=queue),
            ctx.tool(add, a=1, b=1, queue=queue),
            ctx.activity("activity", "existing_activity", 1, 1, queue=queue),
            ctx.skill("part", "BytesWorkflow", "go", queue=queue),
            ctx.workflow("letter", "BytesWorkflow", queue=queue),
        ]

        async def outcome(call: Any) -> str:
            try:
                return f"{await call!r}"
            except CommandError as error:
                return f"{error.failure.type}: {error.failure.message}"

        return ctx.complete("\n".join(await ctx.parallel(*(outcome(call) for call in calls))))


@flow_skill(id="interrupted")
class Interrupted:
    """Pays, then rests for a day; a message ends the rest."""

    @step(start=True, on_interrupt="steer")
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        total = await ctx.tool(add, a=1, b=2)
        await ctx.sleep(timedelta(days=1).total_seconds(), id="rest")
        return ctx.complete(f"rested, {total}")

    @step
    async def steer(self, ctx: Ctx, content: Content, add: int = 0) -> Transition:
        return ctx.complete(f"{content.text}, {add}")


InterruptedWorkflow = workflow_for(Interrupted)
CallsItselfWorkflow = workflow_for(CallsItself)
ElsewhereWorkflow = workflow_for(Elsewhere)
AdderWorkflow = workflow_for(Adder)
KeepsWorkingWorkflow = workflow_for(KeepsWorking)
GatedWorkflow = workflow_for(Gated)
TalkWorkflow = workflow_for(Talk)
PatientWorkflow = workflow_for(Patient)
StubbornWorkflow = workflow_for(Stubborn)
CaughtWorkflow = workflow_for(Caught)
UncaughtWorkflow = workflow_for(Uncaught)
UncaughtBesideWorkflow = workflow_for(UncaughtBeside)
BusyWorkflow = workflow_for(Busy)
ParentWorkflow = workflow_for(Parent)
HoarderWorkflow = workflow_for(Hoarder)
RaisesWorkflow = workflow_for(Raises)
WatchesClockWorkflow = workflow_for(WatchesClock)
RunsInCirclesWorkflow = workflow_for(RunsInCircles)
ForgetsAwaitWorkflow = workflow_for(ForgetsAwait)
IgnoresWorkflow = workflow_for(Ignores)
CountsWorkflow = workflow_for(Counts)
CountsOnceNamedWorkflow = workflow_for(Counts, name="CountsOnceNamedWorkflow", alias="used_to_count")
