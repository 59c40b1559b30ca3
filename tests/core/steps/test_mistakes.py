"""A step that breaks a rule is told which one, and what to write instead."""

import asyncio
from collections.abc import Callable
from inspect import get_annotations
from typing import Any

import pytest

from refold import (
    Cmd,
    Content,
    Ctx,
    Step,
    Transition,
)
from tests.core.byhand import ByHand
from tests.core.small import Order, one_step, price_of, reason_of, stock_of


async def returns_nothing(ctx: Ctx) -> None:
    return None


async def forgets_to_await(ctx: Ctx) -> Transition:
    ctx.llm("draft")  # type: ignore[unused-awaitable]
    return ctx.complete()


async def forgets_to_await_all(ctx: Ctx) -> Transition:
    ctx.gather(ctx.llm("one"), ctx.llm("two"))  # type: ignore[unused-awaitable]
    return ctx.complete()


async def says_what_it_never_awaited(ctx: Ctx) -> Transition:
    return ctx.complete(ctx.llm("draft", "Write."))  # type: ignore[arg-type]


async def asks_for_what_it_never_awaited(ctx: Ctx) -> Transition:
    # The missing await is the mistake that is tried; a type checker finds it.
    return ctx.complete(await ctx.ask("paid", "Paid?", callback=ctx.callback("paid"), expect=str))  # type: ignore[call-overload]


async def sends_what_it_never_awaited(ctx: Ctx) -> Transition:
    return ctx.complete(await ctx.tool("mail", to=["ada"], body={"text": ctx.llm("draft")}))


async def awaits_asyncio(ctx: Ctx) -> Transition:
    await asyncio.sleep(1)
    return ctx.complete()


async def awaits_a_future(ctx: Ctx) -> Transition:
    await asyncio.get_running_loop().create_future()
    return ctx.complete()


async def takes_its_time(ctx: Ctx) -> Transition:
    async with asyncio.timeout(1):
        return ctx.complete(await ctx.llm("draft", "Write."))


async def groups_tasks(ctx: Ctx) -> Transition:
    async with asyncio.TaskGroup():
        return ctx.complete()


async def yields_to_the_loop(ctx: Ctx) -> Transition:
    await asyncio.sleep(0)
    return ctx.complete()


async def awaits_a_transition(ctx: Ctx) -> Transition:
    return await ctx.goto("begin")  # type: ignore[misc, no-any-return]


async def gathers_a_coroutine(ctx: Ctx) -> Transition:
    await ctx.gather(returns_nothing(ctx))  # type: ignore[call-overload]
    return ctx.complete()


async def gathers_a_call_twice(ctx: Ctx) -> Transition:
    call = ctx.tool("t")
    await ctx.gather(call, call)
    return ctx.complete()


async def awaits_a_call_in_two_coroutines(ctx: Ctx) -> Transition:
    call = ctx.tool("t")

    async def one() -> None:
        await call

    await ctx.parallel(one(), one())
    return ctx.complete()


async def gathers_a_list(ctx: Ctx) -> Transition:
    await ctx.gather([ctx.tool("t")])  # type: ignore[call-overload]
    return ctx.complete()


async def races_all(ctx: Ctx) -> Transition:
    await ctx.first(ctx.sleep(one) for one in (1, 2))  # type: ignore[call-overload]
    return ctx.complete()


async def runs_a_list(ctx: Ctx) -> Transition:
    await ctx.parallel([])  # type: ignore[arg-type]
    return ctx.complete()


def returns_a_state(ctx: Ctx) -> Transition:
    return Transition.complete(Order(item="x"))


def patches_without_a_contract(ctx: Ctx) -> Transition:
    return ctx.complete("done").patch(item="x")


def leads_nowhere(ctx: Ctx) -> Transition:
    return Transition().message("hi").cmd(Cmd.llm("a"))


def asks_twice(ctx: Ctx) -> Transition:
    return Transition().cmd(Cmd.ask_user("a", "?")).cmd(Cmd.ask_user("b", "?"))


def asks_without_resume(ctx: Ctx) -> Transition:
    return Transition().cmd(Cmd.ask_user("a", "?"))


def ends_and_asks(ctx: Ctx) -> Transition:
    return ctx.complete().cmd(Cmd.ask_user("a", "?"))


def asks_what_cannot_be_checked(ctx: Ctx) -> Transition:
    return Transition().cmd(Cmd.ask_user("a", "?", expect=list[int]))


def expects_a_name_alone(ctx: Ctx) -> Transition:
    return Transition.goto("begin").cmd(Cmd.llm("a", expect="Verdict"))


async def calls_no_tool(ctx: Ctx) -> Transition:
    await ctx.tool(reason_of, x=1)
    return ctx.complete()


async def calls_with_wrong_arguments(ctx: Ctx) -> Transition:
    await ctx.tool(price_of, article="tea")
    return ctx.complete()


async def takes_the_tools_id_for_its_own(ctx: Ctx) -> Transition:
    await ctx.tool(stock_of, id="A1")
    return ctx.complete()


async def sends_what_is_no_data(ctx: Ctx) -> Transition:
    await ctx.tool("t", thing=object())
    return ctx.complete()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (returns_nothing, "step 'begin' returned None; a step returns a transition, for example `return ctx.goto("),
        (forgets_to_await, "step 'begin' made the call 'draft' and never awaited it; write `await ctx...`"),
        (forgets_to_await_all, "step 'begin' made the call 'one' and never awaited it; write `await ctx...`"),
        (says_what_it_never_awaited, "a message must be text or Content, not <the call 'draft', not awaited> (Call); "),
        (
            asks_for_what_it_never_awaited,
            "command 'paid' (str): callback: Input should be a valid dictionary or instance of Callback; write `await",
        ),
        (
            sends_what_it_never_awaited,
            "argument 'body' of command 'mail' cannot be written as JSON: it holds <the call 'draft', not awaited>; w",
        ),
        (yields_to_the_loop, "step 'begin' awaited None; await calls of ctx only, such as `ctx.gather(...)`"),
        (awaits_a_transition, "a transition is returned, not awaited: write `return ctx.goto(...)`, without `await`"),
        (gathers_a_coroutine, "gather takes calls of ctx, not <coroutine object returns_nothing"),
        (gathers_a_call_twice, "the call 't' is awaited twice at once; make a call for each, with `ctx` again"),
        (awaits_a_call_in_two_coroutines, "the call 't' is awaited twice at once; make a call for each"),
        (
            gathers_a_list,
            "gather takes calls of ctx, not [<the call 't', not awaited>]; write ctx.gather(*...)",
        ),
        (
            races_all,
            "first takes calls of ctx, not <generator object races_all.<locals>.<genexpr>>; write ctx.first(*...)",
        ),
        (runs_a_list, "parallel takes coroutines, not []; write ctx.parallel(*...)"),
        (returns_a_state, "step 'begin' returned a transition with a state, Order("),
        (
            patches_without_a_contract,
            "step 'begin' returned a transition with `.patch(...)`, and its skill has no contract, so no state",
        ),
        (leads_nowhere, "step 'begin' returned a transition that leads nowhere; go on with `ctx.goto(...)`"),
        (asks_twice, "step 'begin' asks two questions as it ends; ask them with `ctx.gather(ctx.ask...)`"),
        (asks_without_resume, "step 'begin' awaits input, but no step says resume_from='begin'"),
        (ends_and_asks, "the task ends, and asks for 'a' all the same: nobody would wait for it; end when it has come"),
        (asks_what_cannot_be_checked, "question 'a': expect=list[int] is not a class at module level"),
        (expects_a_name_alone, "expect='Verdict' names no type; give the type itself, or its name as `module:Name`"),
        (calls_no_tool, "reason_of is not a tool: declare it with @tool(effect=...), or give a tool's name"),
        (
            calls_with_wrong_arguments,
            "command 'price_of' cannot call the tool 'price_of': it takes no article and it needs item; ",
        ),
        (
            takes_the_tools_id_for_its_own,
            "tool 'stock_of' has a parameter 'id', and so has ctx.tool: give the tool's in args={'id': ...}",
        ),
        (sends_what_is_no_data, "argument 'thing' of command 't' cannot be written as JSON: "),
    ],
)
def test_a_step_that_breaks_a_rule_is_told_so(function: Any, reason: str) -> None:
    """
    The task fails with a reason that says what came and what to write instead.
    """
    assert reason_of(function).startswith(reason)


async def none_of_yours() -> None:
    """A coroutine that awaits nothing."""


MADE: dict[str, Callable[[Ctx], Any]] = {
    "activity": lambda ctx: ctx.activity("a", "look_up"),
    "approve": lambda ctx: ctx.approve("a", "All right?"),
    "ask": lambda ctx: ctx.ask("a", "How many?", expect=int),
    "callback": lambda ctx: ctx.callback("a"),
    "chat": lambda ctx: ctx.chat("a", "Hello"),
    "first": lambda ctx: ctx.first(ctx.sleep(1), ctx.sleep(2, id="b")),
    "gather": lambda ctx: ctx.gather(ctx.llm("a"), ctx.llm("b")),
    "llm": lambda ctx: ctx.llm("a"),
    "parallel": lambda ctx: ctx.parallel(none_of_yours()),
    "skill": lambda ctx: ctx.skill("a", "other", "Hello"),
    "sleep": lambda ctx: ctx.sleep(1),
    "tool": lambda ctx: ctx.tool("a"),
    "workflow": lambda ctx: ctx.workflow("a", "Existing"),
}


def test_all_that_a_step_may_forget_to_await_is_tried() -> None:
    """
    Whatever a context has that returns something to await.
    """
    returns = {name: get_annotations(one).get("return", "") for name, one in vars(Ctx).items() if callable(one)}
    awaited = [name for name, kind in returns.items() if kind.startswith(("Call[", "First[", "Gather[", "Parallel["))]

    assert sorted(MADE) == sorted(name for name in awaited if not name.startswith("_"))


def unpacked(result: Any) -> Any:
    """The first of two."""
    one, _ = result
    return one


@pytest.mark.parametrize("use", [lambda it: it.url, lambda it: it.text.upper(), lambda it: it["url"], unpacked, list])
@pytest.mark.parametrize("made", MADE)
def test_a_result_that_is_used_without_await_is_told_so(made: str, use: Callable[[Any], Any]) -> None:
    """
    Python alone would say that some class of refold's has no such attribute.
    """

    async def uses(ctx: Ctx) -> Transition:
        result = MADE[made](ctx)
        try:
            return ctx.complete(str(use(result)))
        finally:
            if made == "parallel":
                result.close()  # else Python warns of a coroutine that was never awaited

    assert "until it is awaited; write `await ctx...`" in reason_of(uses)


def test_a_step_of_an_earlier_release_patched_without_a_contract() -> None:
    """
    Nothing came of it, and the task went on, as its history says.
    """
    task = ByHand(one_step(patches_without_a_contract), patched=lambda _: False)
    task.say()

    assert task.said == ["done"]


@pytest.mark.parametrize("function", [awaits_asyncio, takes_its_time, groups_tasks, awaits_a_future])
@pytest.mark.parametrize("running", [False, True])
def test_a_step_that_uses_asyncio_is_told_so(function: Any, running: bool) -> None:
    """
    Where no loop runs, as in `play`; and within the loop of a worker, which calls a step in no task of the loop's.
    """

    async def within() -> str:
        told = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: told.set_result(reason_of(function)))
        return str(await told)

    said = asyncio.run(within()) if running else reason_of(function)

    assert said.startswith("step 'begin' awaited something of asyncio; await calls of ctx only, such as `ctx")


def test_a_loop_of_gotos_is_stopped() -> None:
    """
    A hundred gotos in one entry are fine, one more is taken for a loop.
    """

    def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("count", left=int(content.text) - 1)

    def count(ctx: Ctx, left: int) -> Transition:
        return ctx.goto("count", left=left - 1) if left else ctx.complete("there")

    fine, loop = (ByHand(one_step(begin, Step("count", count))) for _ in range(2))
    fine.say("100")
    loop.say("101")

    assert fine.said == ["there"]
    assert loop.reason == "100 gotos without an await, the last to 'count': this loop has no end"


def test_a_tool_called_directly_is_refused_at_run_time() -> None:
    """
    However a step reaches the function, it is told to ask for the tool; outside of skills the tool is a function.
    """
    reached = {"tool": price_of}

    def begin(ctx: Ctx) -> Transition:
        reached["tool"](item="tea")
        return ctx.complete()

    assert reason_of(begin).startswith("skill 'one_step' called the tool 'price_of' directly; ask for it instead: ")
    assert price_of(item="tea") == Order(item="tea")


def test_a_step_may_be_a_plain_function_or_await_in_helpers() -> None:
    """
    Sync steps and helpers that await calls of ctx are steps like others.
    """

    async def helper(ctx: Ctx, n: int) -> str:
        return await ctx.llm(f"call{n}")

    async def later(ctx: Ctx) -> Transition:
        return ctx.complete(await helper(ctx, 1) + await helper(ctx, 2))

    task = ByHand(one_step(lambda: Transition.goto("later"), Step("later", later)), cut=True)
    task.say()
    task.give("call1", "a")
    task.give("call2", "b")

    assert task.said == ["ab"]


def test_a_payload_may_have_any_name() -> None:
    """
    A step's parameters may be called as the arguments of goto are.
    """

    def later(ctx: Ctx, step: str, self: int) -> Transition:
        return ctx.complete(f"{step} {self}")

    task = ByHand(one_step(lambda: Transition.goto("later", step="x", self=1), Step("later", later)))
    task.say()

    assert task.said == ["x 1"]
