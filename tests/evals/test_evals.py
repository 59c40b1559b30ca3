"""Evals on recorded runs: the same code is as recorded, other code or another model is not, and nothing fires."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from refold import (
    Artifact,
    Content,
    Ctx,
    DefinitionError,
    EffectPolicy,
    GatePolicy,
    InputRejected,
    Part,
    Transition,
    flow_skill,
    step,
    tool,
)
from refold.callbacks.address import token_of
from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import skill_id
from refold.core.chat import Usage
from refold.core.events import CommandFailed, LlmResult
from refold.core.fold.wanted import Perform
from refold.effects import current
from refold.engine import UnknownSkill
from refold.evals import Evaluation, Row, evaluate, evaluated, junit
from refold.evals.steps import Step, aligned
from refold.export import ExportEngine, ExportError, read_export
from refold.export.read import Exported
from refold.export.write import Wanted, written
from refold.testing import FakeEngine, histories, permanent, transient
from refold.testing.callbacks import SETTINGS
from tests.export.skills import FIRED, Buys, Order, Sends, book, bought, engine, pay, price
from tests.export.test_export import happened, lines_of
from tests.sweeps import examples
from tests.temporal import callback_skills
from tests.temporal.callback_skills import Checkout, LateCheckout
from tests.temporal.gate_skills import Judged
from tests.temporal.order_skills import Mingled
from workflows.order_desk import OrderDesk
from workflows.research_loop import ResearchLoop
from workflows.research_loop_steps import ResearchLoopSteps


async def recorded(at: FakeEngine, task_id: str = "t1", **wanted: Any) -> Exported:
    return read_export([line async for line in written(at, task_id, Wanted(**wanted))])[0]


@pytest.fixture
async def run() -> Exported:
    """A recorded run that has paid."""
    at = engine()
    await bought(at)
    return await recorded(at)


async def test_the_same_code_is_as_recorded_and_fires_nothing(run: Exported) -> None:
    """
    Every step is equal, under each rule for tools; no tool is called.
    """
    fired = list(FIRED)
    for tools in ("recorded", "strict", "live-read-only"):
        found = await evaluated(run, [Buys], tools=tools, functions=[pay, price])

        assert (found.diverged, found.first, found.status_now) == (False, "", "completed")
        assert [row.equal for row in found.rows] == [True] * 5
        assert (found.drift, found.unrecorded, found.unused, found.live) == ((), (), (), ())
    assert fired == FIRED


@pytest.mark.parametrize("skill", [Buys, ResearchLoop, ResearchLoopSteps, Mingled, Judged, OrderDesk, LateCheckout])
@settings(max_examples=examples(30), phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking is slow
@given(data=st.data())
def test_any_run_is_as_recorded_by_its_own_code(skill: Any, data: st.DataObject) -> None:
    """
    Failures, retries, timers, decisions, cancels and answers of operators come back as they came.
    """
    kept = happened(skill, data.draw(histories(skill)))

    async def checked() -> Evaluation:
        return await evaluated(read_export(await lines_of(kept, "T"))[0], [skill], tools="strict")

    found = asyncio.run(checked())
    assert [str(row) for row in found.rows if not row.equal] == []


@pytest.mark.parametrize(
    ("skill", "names"),
    [
        pytest.param(Checkout, [None], id="asked for"),
        pytest.param(LateCheckout, ["name", None], id="asked for later"),
        pytest.param(LateCheckout, [None, "name"], id="before its question"),
    ],
)
async def test_a_call_to_an_address_is_delivered_as_it_came(skill: Any, names: list[str | None]) -> None:
    """
    Both while the task waits for it, and before.
    """
    at = FakeEngine([skill], tools=callback_skills.TOOLS)
    await at.start(skill_id(skill_of(skill)), Content.from_text("go"), task_id="t1")
    called = SETTINGS.read(token_of(callback_skills.handed["t1"]))
    for name in names:
        if name is None:
            paid = Content.from_data({"amount_cents": 5})
            await at.send("t1", paid, slot=called.slot, delivery_id=called.delivery_id, early=True)
        else:
            await at.send("t1", Content.from_text("Ada"), slot=name)
    run = await recorded(at)

    found = await evaluated(run, [skill], tools="strict")

    assert (found.diverged, found.first, found.status_now) == (False, "", "completed")


@flow_skill(id="checkout")
class CheckoutElsewhere:
    """The code after a change: it gives the address to another provider, too, and in another form."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        """Check out."""
        paid = await ctx.callback("paid", expires_s=3600)
        url = f"{paid.url}?{'more' * 100}"
        await ctx.tool(callback_skills.check_out, task=ctx.task_id, url=url)
        await ctx.tool(callback_skills.check_out, task="again", url=url)
        return ctx.complete(paid.url)


@pytest.mark.parametrize("tools", ["recorded", "strict"])
async def test_what_an_eval_shows_has_no_address_that_works(tools: Any) -> None:
    """
    Its results lie in CI's logs, and whoever knows the address can answer the question.
    """
    at = FakeEngine([Checkout], tools=callback_skills.TOOLS)
    await at.start("checkout", Content.from_text("go"), task_id="t1")

    found = await evaluated(await recorded(at), [CheckoutElsewhere], tools=tools)

    token = token_of(callback_skills.handed["t1"])
    shown = f"{found} {found.model_dump_json()} {junit([('t1', found)])}"
    assert found.diverged
    assert "[secret]" in found.first
    assert [part for part in (token[:20], token[20:40], token[-20:]) if part in shown] == []


@flow_skill(id="checkout")
class CheckoutMisspelled:
    """Gives away an address that nobody answers."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        """Check out."""
        paid = await ctx.callback("paid", expires_s=3600)
        wrong = paid.url[:-1] + ("b" if paid.url.endswith("a") else "a")
        await ctx.tool(callback_skills.check_out, task=ctx.task_id, url=wrong)
        await ctx.ask("paid", "the provider says that it is paid", expect=callback_skills.Payment, callback=paid)
        return ctx.complete("done")


async def test_addresses_that_differ_are_a_difference_although_neither_is_shown() -> None:
    """
    The verdict is about the addresses themselves.
    """
    at = FakeEngine([Checkout], tools=callback_skills.TOOLS)
    await at.start("checkout", Content.from_text("go"), task_id="t1")

    found = await evaluated(await recorded(at), [CheckoutMisspelled])

    assert (found.diverged, len(found.drift), found.status_now) == (True, 1, "input-required")


@flow_skill(id="buys", input=Order)
class BuysTwice:
    """The code after somebody broke it: it asks for another amount, looks twice, and books."""

    @step(start=True)
    async def buy(self, ctx: Ctx, order: Order) -> Transition:
        """Buy."""
        cents = await ctx.tool(price, shop=order.shop)
        await ctx.tool(price, shop="the shop next door")
        decision = await ctx.approve("pay", f"Pay {cents} cents to {order.shop}?", show={"cents": cents})
        paid = await ctx.tool(pay, shop=order.shop, cents=cents + 1)
        words = await ctx.llm("words", "Thank the shop.", paid)
        ctx.say(f"{decision.approver} allowed it.")
        return ctx.complete(words)


async def test_changed_code_diverges_and_fires_nothing(run: Exported) -> None:
    """
    The first divergence is named, an inserted step moves no other, and calls are answered by the record or fail.
    """
    fired = list(FIRED)

    found = await evaluated(run, [BuysTwice], functions=[pay, price])

    assert found.diverged
    assert found.first.startswith("entry 2: recorded says: Pay 5 cents")
    assert found.unrecorded == ('tool price {"shop": "the shop next door"}',)
    assert fired == FIRED


@flow_skill(id="buys", input=Order)
class BuysWithCare:
    """Looks at the shop next door, too, and does not mind if nobody knows it."""

    @step(start=True)
    async def buy(self, ctx: Ctx, order: Order) -> Transition:
        """Buy."""
        cents = await ctx.tool(price, shop=order.shop)
        decision = await ctx.approve("pay", f"Pay {cents} cents to {order.shop}?", show={"cents": cents})
        await ctx.tool(price, shop="the shop next door")
        paid = await ctx.tool(pay, shop=order.shop, cents=cents + 1)
        words = await ctx.llm("words", "Thank the shop.", paid)
        ctx.say(f"{decision.approver} allowed it.")
        return ctx.complete(words)


@flow_skill(id="buys", input=Order)
class BuysPatched:
    """Pays a cent more, in tasks that begin with this code."""

    @step(start=True)
    async def buy(self, ctx: Ctx, order: Order) -> Transition:
        """Buy."""
        cents = await ctx.tool(price, shop=order.shop)
        decision = await ctx.approve(
            "pay", f"Pay {cents} cents to {order.shop}?", show={"cents": cents}, policy=GatePolicy(reminder_s=None)
        )
        if ctx.patched("a cent more"):
            cents += 1
        paid = await ctx.tool(pay, shop=order.shop, cents=cents)
        words = await ctx.llm("words", "Thank the shop.", paid)
        ctx.say(f"{decision.approver} allowed it.")
        return ctx.complete(words)


async def test_a_change_under_patched_runs_if_it_is_asked_for(run: Exported) -> None:
    """
    The recorded task goes the old path, and the result says which change did not run; a task that begins now goes the
    new one, whose answer the record may have or not.
    """
    old = await evaluated(run, [BuysPatched], tools="strict")
    new = await evaluated(run, [BuysPatched], tools="strict", patched=True)
    asked = run.entries[1].changed({"patches": {"a cent more": False}})
    known = replace(run, entries=[run.entries[0], asked, *run.entries[2:]])

    assert (old.diverged, old.old_paths) == (False, ("a cent more",))
    assert "  old path, not the new code of ctx.patched: a cent more" in str(old).splitlines()
    assert (new.diverged, new.old_paths) == (True, ())
    assert new.unrecorded == ('tool pay {"cents": 6, "shop": "Ada & Söhne"}',)
    assert (await evaluated(known, [BuysPatched], tools="strict")).old_paths == ("a cent more",)
    assert (await evaluated(known, [BuysPatched], tools="strict", patched=True)).diverged


def thanks(last: str) -> Any:
    """A skill whose long prompt ends with a word, as its long note does."""

    @flow_skill(id="thanks")
    class Thanks:
        """Thanks somebody at length."""

        @step(start=True)
        async def thank(self, ctx: Ctx, content: Content) -> Transition:
            """Thank."""
            words = await ctx.llm("words", "Be polite. " * 40 + last, content.text)
            await ctx.tool(note, text="Thanked. " * 40 + last)
            return ctx.complete(words)

    return Thanks


@tool(effect=EffectPolicy.READ_ONLY)
def note(text: str) -> str:
    """Write a note."""
    return "noted"


async def test_long_arguments_are_compared_to_their_end() -> None:
    """
    What differs after hundreds of equal characters is a divergence, and is shown: in a prompt as in drift.
    """
    at = FakeEngine([thanks("Thank Ada.")], answers={"words": "Thanks."}, tools=[note])
    await at.start("thanks", Content.from_text("Go."), task_id="t1")

    found = await evaluated(await recorded(at), [thanks("Thank Ben.")])

    assert found.diverged
    assert found.first.count("Thank Ada.") == found.first.count("Thank Ben.") == 1
    assert len(found.first) < 800
    assert ["Ada" in one and "Ben" in one for one in found.drift] == [True]


async def test_data_beside_text_is_compared() -> None:
    """
    In what is said and in what is handed over: the same words with other data are a divergence.
    """

    def quotes(cents: int) -> Any:
        content = Content(parts=(Part(text="The price:"), Part(data={"cents": cents})))

        @flow_skill(id="quotes")
        class Quotes:
            """Says a price in words and as data."""

            @step(start=True)
            async def quote(self, ctx: Ctx) -> Transition:
                """Quote."""
                return ctx.complete(content).artifact(Artifact(name="offer", parts=content.parts))

        return Quotes

    at = FakeEngine([quotes(5)])
    await at.start("quotes", Content.from_text("Go."), task_id="t1")
    run = await recorded(at)

    same, other = await evaluated(run, [quotes(5)]), await evaluated(run, [quotes(6)])
    assert (same.diverged, other.diverged) == (False, True)
    assert [other.first.count(one) for one in ("says: ", "hands over: offer: ", '"cents": 5', '"cents": 6')] == [2] * 4


async def test_rules_for_tools(run: Exported) -> None:
    """
    `recorded` takes the next call of the name and reports the drift; `strict` takes none; a read-only tool may run.
    """
    fired = len(FIRED)

    strict = await evaluated(run, [BuysWithCare], tools="strict")
    live = await evaluated(run, [BuysWithCare], tools="live-read-only", functions=[pay, price])

    assert strict.unused == ('tool pay {"cents": 5, "shop": "Ada & Söhne"}',)
    assert strict.unrecorded[0] == 'tool price {"shop": "the shop next door"}'
    assert strict.diverged
    assert live.live == ('tool price {"shop": "the shop next door"}',)
    assert live.drift == (
        'tool pay {"cents": 6, "shop": "Ada & Söhne"}; recorded: {"cents": 5, "shop": "Ada & Söhne"}',
    )
    assert (live.status_now, live.unrecorded, live.unused) == ("completed", (), ())
    assert FIRED[fired:] == ["price the shop next door"]
    inserted = [row for row in live.rows if not row.recorded]
    assert [row.now[0] for row in inserted] == ["price: 5"]
    assert [row.equal for row in live.rows][-2:] == [True, True]


@tool(effect=EffectPolicy.READ_ONLY)
async def looked_up(name: str) -> str:
    """Who calls, with which client."""
    call = current()
    return f"{call.task_id} {call.invocation_id} {type(call.http).__name__}"


@tool(effect=EffectPolicy.READ_ONLY)
def checked(name: str) -> str:
    """What a tool of a plain `def` knows of its call; refuses names in lower case."""
    assert name.istitle(), "names begin with a capital"
    return current().invocation_id


@tool(effect=EffectPolicy.READ_ONLY)
def unwritable(name: str) -> object:
    """Returns what is no JSON."""
    return object()


def asking(function: Any, name: str) -> Any:
    """A skill that calls this tool."""

    @flow_skill(id="asking")
    class Asking:
        @step(start=True)
        async def ask(self, ctx: Ctx) -> Transition:
            return ctx.complete(str(await ctx.tool(function, name=name)))

    return Asking


@pytest.mark.parametrize(
    ("function", "name", "came"),
    [
        (looked_up, "Bob", "looked_up: t1 t1/1.1 AsyncClient"),
        (checked, "Bob", "checked: t1/1.1"),
        (checked, "bob", "checked failed (permanent, AssertionError): AssertionError: names begin with a capital"),
        (unwritable, "Bob", "unwritable failed (permanent, result): tool 'unwritable' returned"),
    ],
)
async def test_a_read_only_tool_is_called_as_by_a_worker(function: Any, name: str, came: str) -> None:
    """
    It knows its call and has a client; whatever it raises, an assertion too, is its failure and ends no eval.
    """
    at = FakeEngine([asking(function, "Ada")], answers={function.__name__: "recorded"})
    await at.start("asking", Content.from_text("go"), task_id="t1")

    found = await evaluated(
        await recorded(at), [asking(function, name)], tools="live-read-only", functions=[looked_up, checked, unwritable]
    )

    assert len(found.live) == 1
    assert came in "".join(line for row in found.rows for line in row.now)


async def test_another_model_is_asked_and_nothing_fires(run: Exported) -> None:
    """
    `scripted:demo` says something else than was recorded: the divergence is its reply, and the cost stands beside.
    """
    fired = list(FIRED)

    found = await evaluated(run, [Buys], model="scripted:demo", functions=[pay, price])

    assert found.diverged
    assert found.first.startswith("entry 5: recorded words: Thank you, shop.; ")
    assert (found.now.asked, found.now.calls, found.recorded.calls) == (1, 1, 1)
    assert found.now.output_tokens > 0
    assert fired == FIRED


async def test_models_are_asked_from_an_entry_on() -> None:
    """
    Replies up to --from stay; later ones are asked anew, with what the code at hand says.
    """
    at = FakeEngine([ResearchLoop], answers={"research": "A draft.", "critique": {"decision": "Approved"}})
    await at.start("research_loop", Content.from_text("Tides"), task_id="t1")
    run, asked = await recorded(at), []

    async def ask(want: Perform) -> LlmResult:
        asked.append(want.command.id)
        value: Any = {"decision": "Approved"} if want.command.id == "critique" else "Another draft."
        return LlmResult(id=want.command.id, invocation_id=want.invocation_id, value=value)

    later = await evaluated(run, [ResearchLoop], model=ask, since=2)
    assert (asked, later.diverged) == (["critique"], False)
    all_ = await evaluated(run, [ResearchLoop], model=ask)
    assert (asked[1:], all_.diverged) == (["research", "critique"], True)
    assert "Another draft." in all_.first


async def test_retries_of_the_record_are_not_asked_again() -> None:
    """
    A model that is asked anew stands in place of recorded failures and their retries.
    """
    at = FakeEngine([Buys], answers={"words": [transient("busy"), "Thank you."]}, tools=[pay, price])
    await bought(at)
    await at.advance()
    run = await recorded(at)

    async def ask(want: Perform) -> LlmResult:
        return LlmResult(id=want.command.id, invocation_id=want.invocation_id, value="Thank you.")

    same, anew = await evaluated(run, [Buys]), await evaluated(run, [Buys], model=ask)

    assert (same.diverged, same.status_now) == (False, "completed")
    assert (anew.diverged, anew.status_now, anew.now.asked) == (True, "completed", 1)
    assert anew.first.startswith("entry 5 of the record did not happen: words failed")


async def test_a_model_that_fails_for_a_moment_is_asked_again(run: Exported) -> None:
    """
    A call that is made anew is retried as its policy says. Only replies are counted, and one whose usage nobody knows
    has no known price.
    """
    asked = []

    async def ask(want: Perform) -> LlmResult | CommandFailed:
        asked.append(want.attempt)
        ids = {"id": want.command.id, "invocation_id": want.invocation_id}
        if len(asked) < 3:
            return CommandFailed(**ids, failure=transient("busy"))
        return LlmResult(**ids, value="Thank you.")

    found = await evaluated(run, [Buys], model=ask)

    assert asked == [1, 2, 3]
    assert found.status_now == "completed"
    assert (found.now.calls, found.now.asked, found.now.usd) == (1, 1, None)


async def test_an_answer_of_no_use_is_in_the_cost_of_both() -> None:
    """
    It was paid for, in the record and by the model that is asked anew. What a tool says of itself is not.
    """
    paid = {"usage": {"input_tokens": 3, "output_tokens": 40, "usd": 0.25}, "model": "a:one"}
    cut = transient("it broke off").model_copy(update={"details": paid})
    at = FakeEngine([Buys], answers={"words": [cut, "Thank you."]}, tools=[pay, price])
    await bought(at)
    await at.advance()
    run, asked = await recorded(at), []

    async def ask(want: Perform) -> LlmResult | CommandFailed:
        asked.append(want.attempt)
        ids = {"id": want.command.id, "invocation_id": want.invocation_id}
        if len(asked) < 3:
            return CommandFailed(**ids, failure=cut)
        return LlmResult(**ids, value="Thank you.", usage=Usage(input_tokens=3, usd=0.25))

    same, anew = await evaluated(run, [Buys]), await evaluated(run, [Buys], model=ask)

    assert (same.recorded.calls, same.recorded.output_tokens) == (2, 40)
    assert same.now == same.recorded
    assert (anew.now.calls, anew.now.asked, anew.now.output_tokens, anew.now.usd) == (3, 3, 80, 0.75)
    assert anew.recorded == same.recorded

    at = FakeEngine([Buys])
    await at.start("buys", Content.from_data({"shop": "Ada", "cents": 5}), task_id="t1")
    await at.reply("t1", "price", cut)
    failed = await evaluated(await recorded(at), [Buys])
    assert (failed.recorded.calls, failed.now.calls) == (0, 0)


async def test_an_open_run_stops_where_it_stood() -> None:
    """
    What waits for a person, or for a call without an outcome, waits again.
    """
    at = engine()
    await at.start("buys", Content.from_data({"shop": "Ada", "cents": 5}), task_id="t1")

    found = await evaluated(await recorded(at), [Buys])

    assert (found.diverged, found.status, found.status_now) == (False, "input-required", "input-required")


async def test_parts_answer_from_the_record() -> None:
    """
    A part is a call like any other: its outcome is recorded, and no task of its own runs.
    """
    at = engine()
    await at.start("sends", Content.from_text("Ada"), task_id="t1")
    await at.decide("t1", approved=True, approver="grace")

    found = await evaluated(await recorded(at), [Sends], tools="strict")

    assert (found.diverged, found.status_now) == (False, "completed")


@tool(effect=EffectPolicy.READ_ONLY)
def endless(round: int) -> int:
    """The next round."""
    return round + 1


@flow_skill(id="buys", input=Order)
class Circles:
    """Never comes to an end."""

    @step(start=True)
    async def buy(self, ctx: Ctx, order: Order) -> Transition:
        """Ask again and again."""
        number = 0
        while True:
            number = await ctx.tool(endless, round=number)


async def test_a_run_without_end_is_cut_off(run: Exported) -> None:
    """
    Code that goes in circles diverges, and the eval ends.
    """
    found = await evaluated(run, [Circles], tools="live-read-only", functions=[endless])

    assert found.diverged
    assert len(found.live) > 100


STEP = st.builds(
    lambda key, more: Step(0, key, (key, *more)),
    st.sampled_from("abc"),
    st.lists(st.sampled_from("xy"), max_size=1).map(tuple),
)


@given(st.lists(STEP, max_size=12), STEP, st.data())
def test_one_inserted_step_moves_no_other(steps: list[Step], new: Step, data: st.DataObject) -> None:
    """
    Wherever it is put, the alignment has one row more, and all others are equal.
    """
    place = data.draw(st.integers(0, len(steps)))

    rows = aligned(steps, [*steps[:place], new, *steps[place:]])

    assert len(rows) == len(steps) + 1
    assert [row for row in rows if not row.equal] == [Row(now_seq=0, now=new.lines)]


def loops(replies: range, *more: Step) -> list[Step]:
    """The steps of a loop: a reply of a model, then always the same answer."""
    pairs = ((Step(0, "outcome reply", (str(one),)), Step(0, "user", ("go on",))) for one in replies)
    return [*(step for pair in pairs for step in pair), *more]


def test_long_runs_are_compared_soon() -> None:
    """
    Steps that differ and steps that are the same all the time, in turn, as where a model is asked anew.
    """
    began = process_time()
    differing = aligned(loops(range(1000)), loops(range(1000, 2000)))
    longer = aligned(loops(range(1000)), loops(range(1000, 2100)))
    some = aligned(loops(range(1000)), loops(range(-100, 900), Step(0, "end", ("end",))))

    assert process_time() - began < 5
    assert [row.equal for row in differing] == [False, True] * 1000
    assert sum(row.equal for row in longer) == 1000
    assert sum(row.equal for row in some) >= 1800


async def test_the_result_reads_as_text_and_junit(run: Exported) -> None:
    """
    Side by side, with the first divergence in the failure's message.
    """
    good, bad = await evaluated(run, [Buys]), await evaluated(run, [BuysTwice])

    report = ElementTree.fromstring(junit([("a.jsonl", good), ("b.jsonl", bad)]))

    assert str(good).splitlines()[0] == "t1  buys  as recorded: 5 steps"
    assert "RECORDED" in str(bad)
    assert "not recorded: tool price" in str(bad)
    assert (report.get("tests"), report.get("failures")) == ("2", "1")
    assert [one.get("name") for one in report.iter("testcase")] == ["a.jsonl", "b.jsonl"]
    assert bad.first[:100] in str(next(report.iter("failure")).get("message"))


def test_wrong_calls(tmp_path: Path) -> None:
    """
    A file that is not there, a skill that is not, an entry that is not, a redacted export, a model that is not.
    """
    file = tmp_path / "t1.jsonl"

    async def export(**wanted: Any) -> None:
        at = engine()
        await bought(at)
        file.write_bytes(b"".join([line async for line in written(at, "t1", Wanted(**wanted))]))

    with pytest.raises(ExportError, match="cannot be read"):
        evaluate(file, [Buys])
    asyncio.run(export())
    assert not evaluate(file, {"buys": skill_of(Buys)}).diverged
    with pytest.raises(DefinitionError, match="neither a class with on_event"):
        evaluate(file, {"buys": "Buys"})
    with pytest.raises(UnknownSkill):
        evaluate(file, [Sends])
    with pytest.raises(InputRejected, match="entries 1 to 5, not 9"):
        evaluate(file, [Buys], since=9)
    with pytest.raises(InputRejected, match="tools is 'recorded' or 'strict' or 'live-read-only'; got 'live'"):
        evaluate(file, [Buys], tools="live")  # type: ignore[arg-type]  # a mistake
    with pytest.raises(InputRejected, match="no provider 'nobody'"):
        evaluate(file, [Buys], model="nobody:x", functions=[book])
    with pytest.raises(InputRejected, match="model is a text `provider:name`; got ''"):
        evaluate(file, [Buys], model="")
    asyncio.run(export(redact=True))
    with pytest.raises(ExportError, match="redacted"):
        evaluate(file, [Buys])


@pytest.mark.parametrize(
    ("model", "came"),
    [
        pytest.param(lambda want: "Thank you.", "'Thank you.'", id="no coroutine"),
        pytest.param(lambda want: asyncio.sleep(0, "Thank you."), "'Thank you.'", id="a text"),
        pytest.param(lambda want: asyncio.sleep(0), "None", id="nothing"),
    ],
)
async def test_a_model_of_a_test_says_what_it_returns(model: Any, came: str, run: Exported) -> None:
    """
    A text alone is no outcome of a call: the refusal names what is.
    """
    with pytest.raises(InputRejected, match=f"LlmResult, a ChatResult or a CommandFailed; got {came}"):
        await evaluated(run, [Buys], model=model)


async def test_within_an_event_loop_it_names_the_other_function(run: Exported) -> None:
    """
    `asyncio.run` would say only that there is a loop, and warn of a coroutine that was never awaited.
    """
    with pytest.raises(InputRejected, match=r"write `await evaluated\(\.\.\.\)`"):
        evaluate(run, [Buys])


async def test_recovered_and_forked_tasks_are_cases_too() -> None:
    """
    They begin with a base of their own, at a later entry; what a dry fork failed with comes back.
    """
    at = FakeEngine([Buys], answers={"words": [permanent("no words"), "Thank you."]}, tools=[pay, price])
    await bought(at)
    recovered = (await at.recover("t1")).task_id
    dry = (await at.fork("t1", at=3)).task_id

    for task_id, status in (("t1", "failed"), (recovered, "completed"), (dry, "failed")):
        run = await recorded(at, task_id)
        found = await evaluated(run, [Buys], tools="strict")

        assert (found.diverged, found.first, found.status_now) == (False, "", status)
        there = ExportEngine([run], {"buys": skill_of(Buys)})
        assert await there.at(task_id, run.header.last) == await at.at(task_id, run.header.last)
