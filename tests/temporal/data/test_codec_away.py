"""While a codec cannot encrypt or decrypt, the worker waits: nothing that was performed is performed again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from refold import Status
from refold.core import retry_policy as failures
from refold.core.retry_policy import NOT_READABLE
from refold.effects import attempt
from refold.effects.attempt import as_application_error
from refold.effects.short import local
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.codec import CodecUnusable
from refold.temporal.data.payloads import RefoldConverter, data_converter
from refold.temporal.data.storage import Off
from refold.temporal.dev import DevServer
from tests.temporal.conftest import PATIENT
from tests.temporal.data import away_skills
from tests.temporal.data.away_skills import CODEC, ERRORS, MANY, RUNS
from tests.temporal.test_task import settled, text


@pytest.fixture(scope="module")
async def worker_client(hasty_server: DevServer) -> AsyncIterator[Client]:
    """A worker with that codec, by its client."""
    client = await Client.connect(hasty_server.address, data_converter=data_converter(Off(), CODEC))
    plugin = RefoldPlugin([away_skills], away_skills.TOOLS, storage=Off(), codec=CODEC)
    async with make_worker(client, plugin, task_queue="away", **own()):
        yield client


def own() -> dict[str, Any]:
    """What a worker has of the program's own."""
    return {
        "activities": [away_skills.copies, away_skills.prints],
        "workflows": [away_skills.Copying, away_skills.Printing],
        "activity_executor": ThreadPoolExecutor(2),
    }


@pytest.fixture(scope="module")
async def engine(hasty_server: DevServer, worker_client: Client) -> TemporalEngine:
    """An engine with the same keys, whose own codec is always there."""
    client = await Client.connect(hasty_server.address, data_converter=data_converter(Off(), CODEC.inner))
    return TemporalEngine(client, "away", patience=PATIENT)


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ran, the codec is there, and a worker that waits for it asks it often."""
    monkeypatch.setattr(attempt, "PAUSES_S", (0.01, 0.1))
    RUNS.clear()
    CODEC.refusals.clear()
    CODEC.spared, CODEC.slow_s, CODEC.error = 0, 0.0, ConnectionError("no answer")
    CODEC.refused.clear()


HOW = ["returns", "fails", "returns, encrypted twice", "fails, encrypted twice", "beats", "reports"]


@pytest.mark.parametrize("how", [*HOW, "returns, and the codec's own call is canceled"])
async def test_a_tool_runs_once(engine: TemporalEngine, how: str) -> None:
    """
    The codec goes away in the middle of a tool, or at its end: what it returns, or how it fails, is sent when the codec
    is back, and what it says of itself meanwhile is lost at most.
    """
    view = await engine.start("pays_while_away", text(how))
    ended = await settled(engine, view.task_id)

    assert dict(RUNS) == {how: 1}
    if how.startswith("fails"):
        assert (ended.status, "the card is blocked" in ended.reason) == (Status.FAILED, True)
    else:
        assert (ended.status, ended.messages[-1].text) == (Status.COMPLETED, f"paid: {how}")


async def test_a_tool_whose_result_is_in_the_ledger_runs_once(engine: TemporalEngine) -> None:
    """
    Where it goes over to a regular activity, this one brings the result, and waits for the codec as others do.
    """
    view = await engine.start("pays_in_ledger_while_away", text("goes over"))
    ended = await settled(engine, view.task_id)

    assert dict(RUNS) == {"goes over": 1}
    assert (ended.status, ended.reason, ended.messages[-1].text) == (Status.COMPLETED, "", "paid: goes over")


@pytest.mark.parametrize("how", ["fails", "goes over, fails"])
async def test_a_tool_that_fails_within_a_workflow_task_runs_once(engine: TemporalEngine, how: str) -> None:
    """
    The ledger records no failure, and a workflow task that cannot be encrypted would run again, and the tool with it.
    """
    view = await engine.start("pays_in_ledger_while_away", text(how))
    ended = await settled(engine, view.task_id)

    assert dict(RUNS) == {how: 1}
    assert (ended.status, "the card is blocked" in ended.reason) == (Status.FAILED, True)


@pytest.mark.parametrize("how", ["returns, for ever", "fails, for ever"])
@pytest.mark.parametrize("skill", ["pays_while_away", "pays_in_ledger_while_away"])
async def test_a_task_that_waits_for_the_codec_can_be_canceled(engine: TemporalEngine, skill: str, how: str) -> None:
    """
    Where its tool failed within a workflow task, this one ends all the same, and a regular activity waits.
    """
    view = await engine.start(skill, text(how))
    await CODEC.refused.wait()
    await engine.cancel(view.task_id)
    ended = await settled(engine, view.task_id)

    assert (ended.status, dict(RUNS)) == (Status.CANCELED, {how: 1})


@pytest.mark.parametrize("how", ["returns, too long", "fails, too long"])
@pytest.mark.parametrize("skill", ["pays_while_away", "pays_in_ledger_while_away"])
async def test_what_a_codec_never_takes_is_not_held(engine: TemporalEngine, skill: str, how: str) -> None:
    """
    Where the codec says so: the command fails at once, with the codec's own words.
    """
    view = await engine.start(skill, text(how))
    ended = await settled(engine, view.task_id)

    assert (ended.status, dict(RUNS)) == (Status.FAILED, {how: 1})
    assert "the key service takes 4,096 bytes" in ended.reason


@pytest.mark.parametrize("short", [False, True], ids=["an activity's", "within a workflow task"])
async def test_a_failure_that_a_codec_never_takes_keeps_its_kind(short: bool) -> None:
    """
    An effect whose outcome is unknown would be taken for one that has not taken place.
    """
    doubt = failures.Failure(kind=failures.FailureKind.UNKNOWN, type="outcome_unknown", message="half of it", again_s=9)
    error, sent = as_application_error(doubt), Failure()
    CODEC.refusals["encode"], CODEC.error = MANY, ERRORS["too long"]
    converter = cast("RefoldConverter", data_converter(Off(), CODEC))
    if short:
        env = ActivityEnvironment(client=cast("Client", SimpleNamespace(data_converter=converter)))
        error = await env.run(local._sendable, error)
    await converter.keep(error, final=True)
    await converter.encode_failure(error, sent)
    read = cast("ApplicationError", await data_converter(Off(), CODEC.inner).decode_failure(sent))

    assert failures.Failure.model_validate(read.details[0]) == doubt.model_copy(
        update={"message": "the key service takes 4,096 bytes"}
    )


async def test_an_activity_of_the_programs_own_goes_on_by_the_last_heartbeat_that_was_sent(
    worker_client: Client,
) -> None:
    """
    A heartbeat that cannot be encrypted replaces none that could: the next attempt would begin from nothing.
    """
    went_on_from = await worker_client.execute_workflow(away_skills.Copying.run, id="copying", task_queue="away")

    assert went_on_from == "page 7"


@pytest.mark.parametrize("how", ["slowly", "later"])
async def test_an_activity_in_a_thread_heartbeats_while_it_waits(worker_client: Client, how: str) -> None:
    """
    From the event loop, which is not held up; by the way of the thread, each heartbeat would block it for ten seconds.
    """
    id = f"printing-{how}"
    said = await worker_client.execute_workflow(away_skills.Printing.run, how, id=id, task_queue="away")

    assert (said, dict(RUNS)) == ("paid", {"prints": 1})


async def test_a_worker_leaves_though_an_activity_in_a_thread_waits(worker_client: Client) -> None:
    """
    The SDK does not interrupt it, so it has to notice by itself that its worker's grace is over.
    """
    plugin = RefoldPlugin([away_skills], away_skills.TOOLS, storage=Off(), codec=CODEC)
    async with make_worker(worker_client, plugin, task_queue="leaving", **own()):
        handle = await worker_client.start_workflow(away_skills.Printing.run, "never", id="left", task_queue="leaving")
        await CODEC.refused.wait()
    await handle.terminate()

    assert dict(RUNS) == {"prints": 1}


async def test_what_cannot_be_decrypted_now_is_left_to_later() -> None:
    """
    The arguments of an activity, for which the server asks again: nothing was performed.
    """
    converter = data_converter(Off(), CODEC)
    payloads = await converter.encode(["a secret diagnosis"])
    CODEC.refusals["decode"] = 1
    undecoded, failure = ApplicationError("Failed decoding arguments"), Failure()
    with pytest.raises(CodecUnusable) as raised:
        await converter.decode(payloads)
    undecoded.__cause__ = raised.value
    await converter.encode_failure(undecoded, failure)

    assert failure.application_failure_info.type == NOT_READABLE
    assert failure.message == (
        "this worker cannot read the command: the codec Away cannot decrypt a value: ConnectionError"
    )


async def test_who_starts_a_task_is_told(worker_client: Client) -> None:
    """
    The error names the codec, and quotes nothing of what it said.
    """
    CODEC.refusals["encode"] = 1
    with pytest.raises(CodecUnusable, match=r"the codec Away cannot encrypt a value: ConnectionError$") as raised:
        await TemporalEngine(worker_client, "away").start("pays_while_away", text("paid"))

    assert isinstance(raised.value.__cause__, ConnectionError)
