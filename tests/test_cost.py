"""What model calls cost, by the journal."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from refold import Content, Ctx, Transition, flow_skill, step
from refold.cli.text.costs import remarks
from refold.core.chat import Reply, Usage
from refold.core.fold.journal import Entry
from refold.cost import model_calls, parts_of, price_list, price_of, total
from refold.testing import FakeEngine, Played, permanent, play, reply
from tests.agent.shop import shop

AT = datetime(2026, 11, 2, tzinfo=UTC)


@flow_skill(id="asks_thrice")
class AsksThrice:
    """Asks a model three times."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        """Ask."""
        for name in ("one", "two", "three"):
            await ctx.chat(name, [name], model="openai:gpt-4o")
        return ctx.complete("done")


@flow_skill(id="uses_a_tool")
class UsesATool:
    """Uses a tool."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        """Look."""
        await ctx.tool("look")
        return ctx.complete("done")


def answered(model: str, taken: int, given: int, usd: float | None = None) -> Reply:
    """A reply of a provider."""
    return Reply(text="ok", model=model, usage=Usage(input_tokens=taken, output_tokens=given, usd=usd))


def journal_of(*replies: Reply) -> Played:
    """A task whose three calls are answered so."""
    return play(AsksThrice, "go", answers=dict(zip(("one", "two", "three"), replies, strict=True)))


def test_a_sum_equals_a_hand_count() -> None:
    """
    A recorded price is taken as it is; a call without one is priced for its day, by the list, and said to be.
    """
    story = journal_of(
        answered("openai:gpt-4o", 1_000, 100, usd=0.5),
        answered("openai:gpt-4o", 2_000, 200),
        answered("scripted:demo", 9, 9),
    )
    calls = [*model_calls("t", story.entries)]
    cost = total(calls)

    # By hand: $2.50 for a million tokens in, $10 for a million out.
    by_hand = 0.5 + 2_000 * 2.50 / 1e6 + 200 * 10 / 1e6 + 0
    assert [one.priced for one in calls] == ["recorded", "listed", "free"]
    assert cost.usd == pytest.approx(by_hand)
    assert (cost.calls, cost.input_tokens, cost.output_tokens) == (3, 3_009, 309)
    assert (cost.listed_calls, cost.prices) == (1, price_list())
    assert cost.unpriced_calls == 0


def test_an_unknown_price_is_no_price() -> None:
    """
    A model that no list knows is named, and is in no sum; with nothing but such calls there is no sum.
    """
    odd = answered("vllm:our-own", 1_000, 100)
    some = total(model_calls("t", journal_of(odd, answered("openai:gpt-4o", 1, 1, usd=0.25), odd).entries))
    none = total(model_calls("t", journal_of(odd, odd, odd).entries))

    assert (some.usd, some.unpriced_calls, some.unpriced_models) == (0.25, 2, ("vllm:our-own",))
    assert (none.usd, none.unpriced_calls, none.input_tokens) == (None, 3, 3_000)


def test_tokens_that_nobody_counted_have_no_price() -> None:
    """
    Not that of no tokens, also where the price list has the model; and no price that a setting gives would help.
    """
    uncounted = Reply(text="ok", model="openai:gpt-4o", usage=Usage(unmeasured=1))
    odd = answered("vllm:our-own", 1_000, 100)
    cost = total(model_calls("t", journal_of(uncounted, odd, uncounted).entries))

    assert price_of("openai:gpt-4o", Usage(unmeasured=1), AT) == (None, "unmeasured")
    assert (cost.unpriced_calls, cost.unmeasured_calls, cost.unpriced_models) == (3, 2, ("vllm:our-own",))
    _, unknown, unmeasured = remarks(cost)
    assert unknown.startswith("1 call not in the sum, for no price is known: vllm:our-own; the setting")
    assert unmeasured == "2 calls not in the sum, for the provider gave no count of tokens"


@pytest.mark.parametrize(
    ("model", "known"),
    [
        pytest.param("openai:gpt-4o", True, id="a model"),
        pytest.param("openai-chat:gpt-4o", True, id="another way to its provider"),
        pytest.param("anthropic:gpt-4o", False, id="not of that provider"),
        pytest.param("gpt-4o", False, id="no provider"),
        pytest.param("", False, id="nothing recorded"),
        pytest.param(":", False, id="no name at all"),
    ],
)
def test_a_price_is_of_a_provider_and_a_model(model: str, known: bool) -> None:
    """
    Nothing is guessed.
    """
    usd, priced = price_of(model, Usage(input_tokens=10, output_tokens=10), AT)

    assert (usd is not None, priced) == (known, "listed" if known else "unknown")


def test_an_answer_of_no_use_was_paid_for() -> None:
    """
    A cut answer is in the sum, with the model that it came from; a call that got no answer is not.
    """
    cut = permanent("cut off", type="length").model_copy(
        update={"details": {"usage": {"output_tokens": 100, "usd": 0.1}}}
    )
    cut_off = play(AsksThrice, "go", reply("one", cut))
    refused = play(AsksThrice, "go", reply("one", permanent("no", type="http_401")))
    (call,) = model_calls("t", cut_off.entries)

    assert (call.model, call.usd, call.failed, call.output_tokens) == ("openai:gpt-4o", 0.1, True, 100)
    assert [*model_calls("t", refused.entries)] == []


def test_a_failed_call_may_say_which_model_it_was() -> None:
    """
    With several models the command names the first one only.
    """
    usage = {"output_tokens": 100, "cached_tokens": 7, "reasoning_tokens": 9, "usd": 0.1}
    cut = permanent("cut off", type="length").model_copy(update={"details": {"model": "b:two", "usage": usage}})
    calls = [*model_calls("t", play(AsksThrice, "go", reply("one", cut)).entries)] * 2

    assert [call.model for call in calls] == ["b:two", "b:two"]
    assert (total(calls).cached_tokens, total(calls).reasoning_tokens) == (14, 18)


@pytest.mark.parametrize("how", ["recovered", "forked"])
def test_an_answer_of_no_use_to_a_call_that_a_new_task_took_over_was_paid_for(how: str) -> None:
    """
    The new task's journal does not have the call, which was sent in the other task; the failure names the model.
    """
    cut = permanent("cut off", type="length").model_copy(
        update={"details": {"model": "b:two", "usage": {"output_tokens": 100, "usd": 0.01}}}
    )

    async def entries() -> list[Entry]:
        engine = FakeEngine([AsksThrice])
        await engine.start("asks_thrice", Content.from_text("go"), task_id="t")
        if how == "recovered":
            await engine.cancel("t")
            new = await engine.recover("t")
        else:
            new = await engine.fork("t", at=1, live=True)
        await engine.reply(new.task_id, "one", cut)
        return [entry async for entry in engine.journal(new.task_id)]

    (call,) = model_calls("t2", asyncio.run(entries()))

    assert (call.model, call.usd, call.failed, call.output_tokens) == ("b:two", 0.01, True, 100)


def test_a_tool_that_fails_with_a_usage_of_its_own_is_no_model_call() -> None:
    """
    Its details are its author's.
    """
    broken = permanent("no", type="odd").model_copy(update={"details": {"model": "b:two", "usage": {"usd": 0.01}}})
    story = play(UsesATool, "go", reply("look", broken))

    assert [one.event.kind for one in story.entries][-1] == "command_failed"
    assert [*model_calls("t", story.entries)] == []


def test_cached_tokens_have_their_own_price() -> None:
    """
    As the price list has it: less than that of other input. No more of them are priced than there is input.
    """
    usual, cached, more = (
        price_of("openai:gpt-4o", Usage(input_tokens=1_000, cached_tokens=count), AT)[0] for count in (0, 1_000, 1_001)
    )

    assert usual is not None
    assert cached is not None
    assert 0 < cached < usual
    assert more == cached


def test_what_was_not_asked_costs_nothing() -> None:
    """
    A reply that middleware took from a cache has no model, and is no call.
    """
    story = play(shop(), "go", answers={"model": Reply(text="ok")})

    assert [*model_calls("t", story.entries)] == []
    assert total([]).usd == 0.0
    assert parts_of(story.entries) == []
