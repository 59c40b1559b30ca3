"""What a worker does for an effect that was begun within a workflow task, with the ledger of the other workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import JsonValue
from temporalio.activity import ActivityCancellationDetails
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from refold import tool
from refold.core.commands import CallLlm, CallTool
from refold.core.content import Content
from refold.effects.activities import Effects
from refold.effects.ledger.ledger import Ledger
from refold.effects.short import local
from refold.effects.short.local import GOES_OVER, Local
from refold.temporal.data.payloads import data_converter
from tests.effects.conftest import Bench
from tests.waiting import a_moment

Policy = Literal["at_most_once", "idempotent"]


async def brought(worker: Local, ledger: str, *, model: str, answer: JsonValue, is_local: bool = False) -> Any:
    """What the activity of a model call brings at a worker whose model answers `answer`."""
    environment = ActivityEnvironment()
    environment.info = replace(
        environment.info, is_local=is_local, activity_type="refold.llm", activity_id="t/1.1", workflow_run_id="run"
    )
    command = CallLlm(id="think", input=Content.from_text("hi"), model=model, fallbacks=("b",))
    sent = RawValue(Payload(data=command.model_dump_json().encode()))

    async def perform() -> JsonValue:
        return answer

    async def act() -> Any:
        return await worker.brought(ledger, sent, perform)

    return await environment.run(act)


async def test_an_effect_that_went_over_waits_for_the_ledger(tmp_path: Path) -> None:
    """
    At a worker that has just started, and does not know the ledger's id yet: an outage is no failure of the effect.
    """
    folder, away = tmp_path / "disk", tmp_path / "away"
    folder.mkdir()
    with Ledger(str(folder / "ledger.db")) as ledger:
        id = await Local(lambda: ledger).ledger_id()
    folder.rename(away)
    asked = 0

    with Ledger(str(folder / "ledger.db")) as again:

        def opened() -> Ledger:
            nonlocal asked
            asked += 1
            if asked == 2:
                away.rename(folder)
            return again

        assert await brought(Local(opened), id, model="a", answer="performed") == "performed"


async def test_a_record_of_another_model_is_none(tmp_path: Path) -> None:
    """
    A call that went over may be answered, and recorded, by the worker where it began, while the regular activity moves
    on to the next model. The record is that of the same call only.
    """
    with Ledger(str(tmp_path / "ledger.db")) as ledger:
        began, other = Local(lambda: ledger), Local(lambda: ledger)
        id = await began.ledger_id()
        _, recorded = await brought(began, id, model="a", answer="of a", is_local=True)

        assert recorded == "of a"
        assert await brought(other, id, model="a", answer="of a again") == "of a"
        assert await brought(other, id, model="b", answer="of b") == "of b"


class Attempt:
    """One activity of the tool `charge`, at a worker."""

    def __init__(self, bench: Bench, client: Client, ledger: str, *, number: int = 1, is_local: bool = False) -> None:
        self.environment = ActivityEnvironment(client=client)
        self.environment.payload_converter = data_converter(None).payload_converter
        self.environment.info = replace(
            self.environment.info,
            is_local=is_local,
            activity_type="tool.charge",
            activity_id="t/1.1",
            workflow_id="t",
            workflow_run_id="run",
            attempt=number,
        )
        command = CallTool(id="c", name="charge").model_dump_json().encode()
        sent = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=command))
        running = self.environment.run(bench.activity("tool.charge"), sent, 0, None, None, ledger)
        self.ended: asyncio.Task[Any] = asyncio.ensure_future(running)

    async def is_timed_out(self) -> None:
        """The server has given it up, and its worker is told."""
        await a_moment()  # it waits by then
        self.environment.cancel(ActivityCancellationDetails(not_found=True, timed_out=True))
        with pytest.raises(asyncio.CancelledError):
            await self.ended


class Charging:
    """A worker whose tool has been called within a workflow task, and goes on until `enough` is set."""

    def __init__(self, bench: Bench, client: Client, ledger: str) -> None:
        self._given = (bench, client, ledger)
        self.enough = asyncio.Event()
        self.calls = self.canceled = 0

    def attempt(self, number: int = 1, *, is_local: bool = False) -> Attempt:
        """Begin an attempt of the effect's activity."""
        return Attempt(*self._given, number=number, is_local=is_local)


@asynccontextmanager
async def gone_over(effect: Policy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Charging]:
    """An effect of this policy that runs on at its worker, beyond its workflow task."""
    monkeypatch.setattr(local, "HOLD_S", 0.01)

    @tool(effect=effect)
    async def charge() -> str:
        charging.calls += 1
        try:
            await charging.enough.wait()
        except asyncio.CancelledError:
            charging.canceled += 1
            raise
        return "charged"

    nobody = await Client.connect("127.0.0.1:1", lazy=True)
    async with Effects([charge]) as effects:
        bench = Bench(effects)
        charging = Charging(bench, nobody, await bench.run("refold.ledger"))
        with pytest.raises(ApplicationError) as caught:
            await charging.attempt(is_local=True).ended
        assert caught.value.type == GOES_OVER
        while not charging.calls:
            await a_moment()
        yield charging
        charging.enough.set()


async def test_an_effect_with_a_receipt_outlasts_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The server gives up two of them, as its worker is cut off twice. The third brings the outcome: none is in doubt.
    """
    async with gone_over("at_most_once", monkeypatch) as charging:
        await charging.attempt(1).is_timed_out()
        await charging.attempt(2).is_timed_out()
        last = charging.attempt(3)
        await a_moment()
        charging.enough.set()

        assert await last.ended == "charged"
        assert (charging.calls, charging.canceled) == (1, 0)


@pytest.mark.parametrize("effect", ["at_most_once", "idempotent"])
async def test_an_attempt_that_is_given_up_late_takes_nothing_from_the_next(
    effect: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The next attempt comes to the same worker before that hears of the first one's end: the effect goes on for it.
    """
    async with gone_over(effect, monkeypatch) as charging:
        first, second = charging.attempt(1), charging.attempt(2)
        await first.is_timed_out()
        charging.enough.set()

        assert await second.ended == "charged"
        assert (charging.calls, charging.canceled) == (1, 0)


async def test_an_attempt_that_comes_as_the_effect_is_canceled_performs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The worker has canceled it for the attempt before, which the server has given up, and the tool has not ended yet.
    """
    async with gone_over("idempotent", monkeypatch) as charging:
        first = charging.attempt(1)
        await a_moment()
        first.environment.cancel(ActivityCancellationDetails(not_found=True, timed_out=True))
        second = charging.attempt(2)
        await asyncio.wait([first.ended])
        charging.enough.set()

        assert await second.ended == "charged"
        assert charging.calls - charging.canceled == 1
