"""The public API as a reader would use it. Never run: it is only type-checked, by mypy and pyright, strictly."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Sequence
from typing import Literal, assert_type

from pydantic import BaseModel, ConfigDict

from refold import (
    ALL,
    Artifact,
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Contract,
    Ctx,
    ErrorRecord,
    Event,
    Invariant,
    LlmResult,
    Move,
    RetryPolicy,
    SkillOutcome,
    StatePatch,
    Step,
    TimerFired,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    step,
    table,
    tool,
)


class Order(BaseModel):
    item: str
    amount: int = 1


class Verdict(BaseModel):
    decision: Literal["yes", "no"]


Choice = Literal["a", "b"]


@tool(effect="read_only")
def price_of(item: str, currency: str = "EUR") -> int:
    return len(item + currency)


async def checked(ctx: Ctx, item: str) -> int:
    return await ctx.tool(price_of, item=item)


@tool(effect="at_most_once", timeout_s=30)
async def charge(order: Order) -> str:
    return order.item


async def tools_stay_functions() -> None:
    assert_type(price_of("tea"), int)
    assert_type(await charge(Order(item="tea")), str)


# --- a reducer


class Idle(BaseModel):
    kind: Literal["idle"] = "idle"


class Drafting(BaseModel):
    kind: Literal["drafting"] = "drafting"
    order: Order


@flow_skill(id="drafts", name="Drafts", tags=["demo"], retry=RetryPolicy(max_retries=1), input=Order)
class Drafts:
    @staticmethod
    def initial() -> Idle | Drafting:
        return Idle()

    def on_event(self, state: Idle | Drafting, event: Event, ctx: Ctx) -> Transition:
        match state, event:
            case Idle(), UserMessage(content=content):
                order = ctx.decode(Order, content.data)
                assert_type(order, Order)
                asked = Transition.to(Drafting(order=order))
                asked = asked.cmd(Cmd.llm("draft", "Write.", order.item, expect=Verdict))
                return asked.cmd(Cmd.tool("charge", charge, order=order)).cmd(Cmd.sleep("nap", 5)).message("Now.")
            case Drafting(order=order), LlmResult(id="draft", value=value):
                assert_type(ctx.decode(Verdict, value), Verdict)
                return Transition.await_input("sure", "Sure?", state, expect=Verdict)
            case Drafting(), ToolResult() | TimerFired():
                return Transition.to(state).status("waiting")
            case _, CommandFailed(failure=failure):
                return Transition.fail(failure.message, Idle())
            case _:
                return Transition.ignore(state)


assert_type(Drafts(), Drafts)
assert_type(Drafts.initial(), Idle | Drafting)


# --- named steps


@flow_skill()
class Shop:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content, seen: list[str]) -> Transition:
        assert_type(await ctx.llm("text", "Write.", content), str)
        assert_type(await ctx.llm("text", expect=None), str)
        assert_type(await ctx.llm("verdict", expect=Verdict, model="scripted:demo"), Verdict)
        assert_type(await ctx.llm("several", expect=list[Verdict], settings={"temperature": 0}), list[Verdict])
        assert_type(await ctx.tool(price_of, item="tea"), int)
        assert_type(await ctx.tool(charge, order=Order(item="tea"), key="order:1"), str)
        assert_type(await ctx.tool(price_of, {"item": "tea"}, id="price"), int)
        assert_type(await ctx.skill("child", Drafts, "hi"), SkillOutcome)
        assert_type(await ctx.ask("more", "More?"), Content)
        assert_type(await ctx.ask("order", "Which?", expect=Order), Order)
        assert_type(await ctx.sleep(5), None)
        assert_type(
            await ctx.gather(ctx.llm("a"), ctx.llm("b", expect=Verdict), ctx.tool(price_of, item="x")),
            tuple[str, Verdict, int],
        )
        assert_type(await ctx.gather(*[ctx.tool(price_of, item=item) for item in seen]), tuple[int, ...])
        assert_type(await ctx.parallel(*(checked(ctx, item) for item in seen), limit=3), tuple[int, ...])
        try:
            await ctx.tool("unknown", anything=1)
        except CommandError as error:
            assert_type(error.failure.message, str)
        if ctx.patched("shorter") and ctx.now.year > 2025:
            ctx.say("Hello.")
            ctx.hand_over(Artifact.from_text("note.txt", "x"))
            ctx.status("asking")
        return ctx.await_input("verdict", "Well?", expect=Verdict, seen=[*seen, content.text])

    @step(resume_from="begin")
    async def decided(self, ctx: Ctx, verdict: Verdict, seen: list[str]) -> Transition:
        match verdict.decision:
            case "yes":
                return ctx.complete("Done.", [Artifact.from_data("seen.json", {"seen": len(seen)})])
            case "no":
                return ctx.goto("last", why="no")

    @step
    def last(self, ctx: Ctx, why: str) -> Transition:
        return ctx.reject(why) if not ctx.messages else ctx.fail(why)


assert_type(Shop(), Shop)


# --- a table


def begin(content: Content) -> Transition:
    return Transition.goto("judge", order=Order(item=content.text)).cmd(Cmd.llm("verdict", expect=Verdict))


def judge(ctx: Ctx, order: Order, verdict: Verdict) -> Transition:
    return ctx.complete(f"{order.item}: {verdict.decision}")


TABLE = table("judges", Step("begin", begin).start().takes_user_message(), Step("judge", judge), tags=["demo"])
assert_type(TABLE.options.card.id, str)


# --- what a checker must find


async def mistakes(ctx: Ctx, orders: Sequence[Order]) -> Transition:
    await ctx.llm("a", promt="Write.")  # type: ignore[call-overload]
    await ctx.goto("judge")  # type: ignore[misc]
    Transition.complete().message(5)  # type: ignore[arg-type]
    await ctx.gather(price_of("x"))  # type: ignore[call-overload]
    return await ctx.tool(price_of, item=orders[0].item)  # type: ignore[arg-type]


class Shared(BaseModel):
    model_config = ConfigDict(frozen=True)

    phase: str = "new"
    topic: str
    note: str = ""
    trouble: ErrorRecord | None = None


def first_state(content: Content, ctx: Ctx) -> Shared:
    return Shared(topic=content.text)


CONTRACT = Contract(
    state=Shared,
    begins=first_state,
    owned=("topic",),
    lifecycle="phase",
    moves=(Move("new", "done"), Move("new", "failed")),
    invariants=(Invariant("topic", "there is a topic", lambda shared: bool(shared.topic), at="new"),),
)


@flow_skill(id="shares", contract=CONTRACT)
class Shares:
    @step(start=True, enters="new", reads=["topic"], writes=["note"], requires=["topic"], exits=["done"])
    async def note(self, ctx: Ctx, state: Shared) -> StatePatch:
        return StatePatch(note=await ctx.llm("note", "A note?", state.topic))

    @step(on_error=True, reads=ALL, writes=["trouble"])
    def handle(self, error: ErrorRecord) -> StatePatch:
        return StatePatch(trouble=error)


def noted(ctx: Ctx, state: Shared) -> Transition:
    return ctx.complete(state.topic).patch(note="x")


SHARES = table(
    "shares_table", Step("note", noted, enters="new", reads=["topic"], writes=["note"]).start(), contract=CONTRACT
)
