"""The limit on what an owner spends in a day: one sum for all workers, checked before a call and counted after it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue
from temporalio.exceptions import ApplicationError

from refold.core.authoring.cmd import Cmd
from refold.core.chat import Usage
from refold.core.commands import CallLlm
from refold.core.retry_policy import Failure, FailureKind
from refold.effects.activities import Effects
from refold.effects.ledger.receipts import LedgerUnavailable
from refold.effects.ledger.spending import DaySpent, Spending
from refold.effects.ledger.store import Store, store_of
from refold.effects.models import owner_day
from tests.effects.conftest import Bench, failure_in
from tests.services.openai_server import OpenAIServer, Trouble

RATE = {"input": 1_000, "output": 1_000}
"""A cent for ten tokens."""


def call(prompt: str = "Hello", **settings: Any) -> CallLlm:
    """A model call of ten tokens or so."""
    return CallLlm(id="ask", prompt=prompt, model="scripted:demo", settings=settings)


async def fails(bench: Bench, command: CallLlm, owner: str | None = "ada") -> Failure:
    """The failure of a call."""
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(command, False, owner)
    return failure_in(caught.value)


async def test_a_day_holds_for_all_workers(bench: Bench) -> None:
    """
    What one worker counts stops a call at another; another owner's day is another day, and so is nobody's.
    """
    asked = call(owner_day={"usd": 0.01}, usd_per_million_tokens=RATE)
    made = await bench.llm(asked, False, "ada")
    async with Effects() as second:
        refused = await fails(Bench(second), asked)
        others = [await Bench(second).llm(asked, False, owner) for owner in ("bob", None)]

    assert made.usage.usd == pytest.approx((made.usage.input_tokens + made.usage.output_tokens) / 1_000)
    assert (refused.kind, refused.type) == (FailureKind.PERMANENT, "owner_day_spent")
    spent, today = pytest.approx(made.usage.usd), datetime.now(UTC).date().isoformat()
    assert refused.details == {"what": "usd", "limit": 0.01, "spent": spent, "day": today}
    assert [one.usage for one in others] == [made.usage] * 2


async def test_calls_without_the_setting_are_not_counted(bench: Bench, ledger_file: Path) -> None:
    """
    They open no database.
    """
    await bench.llm(call(), False, "ada")

    assert not {"ledger.db"} & {file.name for file in ledger_file.parent.iterdir()}


async def test_a_limit_in_tokens(bench: Bench) -> None:
    """
    Counting without a limit counts, too: the call after it is not admitted.
    """
    counted = await bench.llm(call(owner_day={}), False, "ada")
    failure = await fails(bench, call(owner_day={"tokens": 5}))

    assert counted.usage.input_tokens > 5
    assert failure.message.startswith("the owner's budget of 5 tokens for ")


async def test_an_answer_of_no_use_is_counted(bench: Bench, openai: OpenAIServer) -> None:
    """
    It was paid for; a call that got no answer was not.
    """
    body = (
        '{"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [{"index": 0, '
        '"finish_reason": "length", "message": {"role": "assistant", "content": "So"}}], '
        '"usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}}'
    )
    openai.say(Trouble(text=body), Trouble.status(401))
    asked = CallLlm(id="ask", prompt="Hello", model="openai:gpt-4o", settings={"owner_day": {"tokens": 14}})

    assert (await fails(bench, asked, "cut")).type == "length"
    assert (await fails(bench, asked, "cut")).type == "owner_day_spent"
    assert (await fails(bench, asked, "refused")).type != "owner_day_spent"


async def test_what_a_canceled_call_was_answered_is_counted(bench: Bench, openai: OpenAIServer) -> None:
    """
    As while the model is asked once more, for an answer that fits.
    """
    openai.say("no number", Trouble(delay_s=10))
    limit: dict[str, JsonValue] = {"owner_day": {"tokens": 1}}
    asked = Cmd.llm("ask", "How many?", expect=int, model="openai:gpt-4o", settings=limit)
    asking = asyncio.create_task(bench.llm(asked, False, "ada"))
    async with asyncio.timeout(60):
        while len(openai.requests) < 2:  # noqa: ASYNC110 - the server is in a thread
            await asyncio.sleep(0.01)
    bench.environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert (await fails(bench, asked)).type == "owner_day_spent"


async def test_a_canceled_call_does_not_wait_for_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Not without end: a worker that is stopped waits until its calls have ended, and cancels each once. It is counted
    once the ledger is back.
    """
    monkeypatch.setattr(owner_day, "COUNTED_S", 0.1)
    begun = asyncio.Event()
    back, counted = threading.Event(), threading.Event()

    class Away:
        def add(self, *_: Any, **__: Any) -> None:
            if not back.is_set():
                raise LedgerUnavailable("ledger", "its database is away")
            counted.set()

    async def ask() -> Any:
        owner_day.PAID.get()(Usage(input_tokens=7))
        begun.set()
        await asyncio.Event().wait()

    day = owner_day.OwnerDay(open=cast("Any", Away), owner="ada", invocation_id="T/1.1")
    calling = asyncio.create_task(owner_day.within_day(day, {"owner_day": {}}, ask))
    await begun.wait()
    calling.cancel()
    ended, _ = await asyncio.wait([calling], timeout=10)
    calling.cancel()

    assert ended, "it waits"
    assert calling.cancelled()
    back.set()
    assert await asyncio.to_thread(counted.wait, 60), "it was never counted"


async def test_dollars_need_a_price(bench: Bench, openai: OpenAIServer) -> None:
    """
    A call whose price nobody knows fails, with what it used; a price in the settings is taken.
    """
    asked = CallLlm(id="ask", prompt="Hello", model="openai:our-own", settings={"owner_day": {"usd": 1}})
    unpriced = await fails(bench, asked)
    rated = asked.model_copy(update={"settings": {**asked.settings, "usd_per_million_tokens": RATE}})
    priced = await bench.llm(rated, False, "ada")
    by_model = rated.model_copy(update={"settings": {"usd_per_million_tokens": {asked.model: RATE, "a:b": RATE}}})

    assert unpriced.type == "no_price"
    assert "usd_per_million_tokens" in unpriced.message
    assert isinstance(unpriced.details, dict)
    assert Usage.model_validate(unpriced.details["usage"]).output_tokens > 0
    assert priced.usage.usd > 0
    assert (await bench.llm(by_model)).usage.usd > 0
    assert not {"owner_day", "usd_per_million_tokens"} & set(openai.requests[-1].body)


@pytest.mark.parametrize("limit", [{"usd": 1}, {"tokens": 100}])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}], ids=str)
async def test_a_limit_needs_a_count_of_tokens(
    bench: Bench, openai: OpenAIServer, limit: dict[str, int], usage: Any, stream: bool
) -> None:
    """
    Some servers send no `usage`, or one of zeros: without a limit the price is unknown, not 0, also if the settings
    give one; with a limit the call fails.
    """
    said = {"role": "assistant", "content": "Yes."}
    choice = {"index": 0, "delta" if stream else "message": said, "finish_reason": "stop"}
    kind = "chat.completion.chunk" if stream else "chat.completion"
    body = json.dumps({"id": "1", "object": kind, "created": 1, "model": "gpt-4o", "choices": [choice], "usage": usage})
    uncounted = Trouble(text=f"data: {body}\n\ndata: [DONE]\n\n" if stream else body)
    openai.say(uncounted, uncounted)
    rated = {"usd_per_million_tokens": RATE}
    free = await bench.llm(CallLlm(id="a", prompt="Hello", model="openai:gpt-4o", settings=rated), stream)
    asked = CallLlm(id="a", prompt="Hello", model="openai:gpt-4o", settings={**rated, "owner_day": limit})
    with pytest.raises(ApplicationError, match="gave no count of tokens, so it bounds nothing") as caught:
        await bench.llm(asked, stream, "ada")

    assert free.usage == Usage(unmeasured=1)
    assert failure_in(caught.value).type == "no_usage"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"owner_day": 5}, id="a number"),
        pytest.param({"owner_day": {"eur": 5}}, id="another currency"),
        pytest.param({"owner_day": {"usd": "5"}}, id="a text"),
        pytest.param({"owner_day": {"usd": 0}}, id="nothing"),
        pytest.param({"owner_day": {"tokens": True}}, id="a truth"),
        pytest.param({"owner_dy": {"usd": 5}}, id="a misspelt limit"),
        pytest.param({"usd_per_million_tokens": 3}, id="one price"),
        pytest.param({"usd_per_million_tokens": {"input": 1}}, id="half a price"),
        pytest.param({"usd_per_million_tokens": {"input": -1, "output": 1}}, id="a negative price"),
    ],
)
async def test_a_setting_that_means_nothing_fails_the_call(bench: Bench, settings: dict[str, Any]) -> None:
    """
    At once, in words.
    """
    failure = await fails(bench, call(**settings))

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "configuration")
    assert next(iter(settings)) in failure.message


async def test_a_file_is_refused_where_workers_have_other_hosts(bench: Bench) -> None:
    """
    Each host would have a day of its own.
    """
    bench.effects.server = "temporal.example.com:7233"

    failure = await fails(bench, call(owner_day={"usd": 1}))

    assert failure.type == "configuration"
    assert "PostgreSQL" in failure.message


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = datetime(2026, 2, 28, 23, 59, tzinfo=UTC)

    def __call__(self) -> float:
        return self.at.timestamp()


def opened(file: Path, clock: Clock) -> Store:
    return store_of(str(file), clock=clock)


def test_a_day_ends_at_midnight(tmp_path: Path) -> None:
    """
    In UTC; sums are exact, and old ones go.
    """
    clock = Clock()
    spending = Spending(opened(tmp_path / "ledger.db", clock))
    for _ in range(10):
        spending.add("ada", tokens=3, usd=0.1)
    before = spending.today("ada")
    clock.at = clock.at.replace(month=3, day=1)
    after = spending.today("ada")
    clock.at = clock.at.replace(month=12)
    spending.add("bob", tokens=1, usd=0.0)
    clock.at = clock.at.replace(month=2, day=28)

    assert before == DaySpent(day="2026-02-28", calls=10, tokens=30, usd=1.0)
    assert after == DaySpent(day="2026-03-01")
    assert spending.today("ada") == DaySpent(day="2026-02-28")
    spending.store.close()


def test_a_table_that_was_not_committed_is_made_again(tmp_path: Path) -> None:
    """
    The first call makes the table, and a failure of the same transaction undoes that.
    """
    with contextlib.closing(store_of(str(tmp_path / "ledger.db"))) as store:
        spending = Spending(store)
        with pytest.raises(OverflowError):
            spending.add("ada", tokens=2**70, usd=0)  # more than any database counts

        assert spending.add("ada", tokens=7, usd=0).tokens == 7
