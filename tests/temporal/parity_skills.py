"""Skills of the law that the engine for tests answers as the one on Temporal does: each stands for a way to wait."""

from __future__ import annotations

import httpx
from pydantic import BaseModel, RootModel

from refold import CommandError, Content, Ctx, GatePolicy, Transition, flow_skill, step, tool
from refold.effects import Never
from refold.temporal import workflow_for

BROKEN: set[str] = set()
"""The orders for which `work` fails for good."""


@tool(effect="idempotent")
def work(order: str) -> str:
    """Fails while a test says so."""
    if order in BROKEN:
        raise Never(f"{order} is broken")
    return f"worked at {order}"


@tool(effect="idempotent")
def unmake(result: str) -> None:
    """Undo `make`."""


@tool(effect="compensate", undo=unmake)
def make(order: str) -> str:
    """Make something that is undone if the task fails."""
    return f"made {order}"


@tool(effect="read_only")
def fetch(why: str) -> str:
    """Fails as most tools do: by what the other side answers, by data that does not fit, or by a bug."""
    if why == "404":
        request = httpx.Request("GET", "https://shop.example.org/orders/7")
        httpx.Response(404, request=request).raise_for_status()
    if why == "misfit":
        Person.model_validate({"name": "Ada"})
    raise ValueError(f"{why} is not known\nof https://ada:secret@example.org/orders")


TOOLS = [work, make, unmake, fetch]


class Sizes(RootModel[list[int]]):
    """Some sizes."""


class Person(BaseModel):
    """Somebody."""

    name: str
    years: int
    nick: str = ""


class Limits(BaseModel):
    """A policy of the two gates below."""

    approvers: tuple[str, ...] = ()
    needed: int = 1
    second_person: bool = False
    on_denied: str = "fail"
    on_timeout: str = "fail"
    allow_unsigned: bool = False
    timeout_s: float | None = 1800.0
    grace_s: float = 300.0


@flow_skill(id="p_asks")
class Asks:
    """Asks for two things at once, then for a third."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        sizes, person = await ctx.gather(
            ctx.ask("sizes", "Which sizes?", expect=Sizes), ctx.ask("person", "Who?", expect=Person)
        )
        more = await ctx.ask("more", "More?")
        return ctx.complete(f"{sizes.root} {person.name} {more.text}")


@flow_skill(id="p_gates", input=Limits)
class Gates:
    """Makes something, then opens two gates at once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, limits: Limits) -> Transition:
        made = await ctx.tool(make, order="gates")
        policy = GatePolicy.model_validate(limits.model_dump())
        try:
            decided = await ctx.gather(
                ctx.approve("one", "One?", show={"amount": 1, "to": "Ada"}, policy=policy, editable=["amount"]),
                # Without reminders: two at once come back in any order.
                ctx.approve("two", "Two?", show={"amount": 2}, policy=policy.model_copy(update={"reminder_s": None})),
            )
        except CommandError as error:
            return ctx.complete(f"{error.failure.type}: {error.failure.message}")
        return ctx.complete(
            f"{made}: " + ", ".join(f"{one.decision} by {one.approver}: {one.shown}" for one in decided)
        )


@flow_skill(id="p_works")
class Works:
    """Makes something, asks, works, asks again."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        made = await ctx.tool(make, order=content.text)
        first = await ctx.ask("first", "First?")
        worked = await ctx.tool(work, order=content.text)
        last = await ctx.ask("last", "Last?")
        return ctx.complete(f"{made} {first.text} {worked} {last.text}")


@flow_skill(id="p_rejects")
class Rejects:
    """Asks, and rejects what it is told."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        said = await ctx.ask("said", "What?")
        if said.text == "fail":
            return ctx.fail("it failed")
        if said.text == "bug":
            raise ValueError("a bug")
        return ctx.reject("it is no order of ours")


@flow_skill(id="p_sleeps")
class Sleeps:
    """Sleeps an hour."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.sleep(3600, id="nap")
        return ctx.complete("slept")


@flow_skill(id="p_catches")
class Catches:
    """A part, whose failure it catches."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        try:
            said = await ctx.skill("works", Works, content, timeout_s=7200)
        except CommandError as error:
            return ctx.complete(f"{error.failure.type}: {error.failure.message}")
        return ctx.complete(said.text)


@flow_skill(id="p_part_gates", input=Limits)
class PartGates:
    """A part that opens gates."""

    @step(start=True)
    async def begin(self, ctx: Ctx, limits: Limits) -> Transition:
        return ctx.complete((await ctx.skill("gates", Gates, limits)).text)


@flow_skill(id="p_interrupted")
class Interrupted:
    """Works, then rests for a day; a message ends the rest."""

    @step(start=True, on_interrupt="steer")
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(make, order=content.text)
        await ctx.sleep(86_400, id="rest")
        return ctx.complete("rested")

    @step
    async def steer(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.ask("why", f"Why {content.text}?")).text)


@flow_skill(id="p_fetches")
class Fetches:
    """Fetches, and says how that failed."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        try:
            return ctx.complete(await ctx.tool(fetch, why=content.text))
        except CommandError as error:
            return ctx.complete(error.failure.model_dump_json())


SKILLS = [Asks, Gates, Works, Rejects, Sleeps, Catches, PartGates, Interrupted, Fetches]

AsksWorkflow = workflow_for(Asks)
GatesWorkflow = workflow_for(Gates)
WorksWorkflow = workflow_for(Works)
RejectsWorkflow = workflow_for(Rejects)
SleepsWorkflow = workflow_for(Sleeps)
CatchesWorkflow = workflow_for(Catches)
PartGatesWorkflow = workflow_for(PartGates)
InterruptedWorkflow = workflow_for(Interrupted)
FetchesWorkflow = workflow_for(Fetches)
