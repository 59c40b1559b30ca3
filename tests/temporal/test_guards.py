"""Guards on a real server: what they hold back is in no stream, what they block is nowhere; outages are waited out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta

import httpx
import pytest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.testing import TimeSkipper

from refold import Status
from refold.a2a import Settings, a2a_app
from refold.engine import Tokens
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.services.openai_server import OpenAIServer, Trouble
from tests.temporal import guarded
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, text

SAID = f"Your card is here. It is {guarded.CARD}, and I should not say so. Good bye."


@pytest.fixture(scope="module")
def model() -> Iterator[OpenAIServer]:
    """A model behind OpenAI's protocol."""
    with OpenAIServer() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder, model: OpenAIServer) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker; all that ended is replayed."""
    plugin = RefoldPlugin([guarded], model="openai:demo", storage=values)
    async with make_worker(client, plugin, task_queue="guards"):
        yield TemporalEngine(client, "guards", patience=PATIENT)
    await replay_all(client, plugin, "guards")


async def watched(engine: TemporalEngine, skill: str) -> tuple[str, str, str]:
    """A streamed task: its id, the tokens that a watcher saw, and all else that it saw."""
    view = await engine.start(skill, text("Which card?"), stream=True)
    seen = await collected(engine.watch(view.task_id))
    tokens = "".join(one.text for one in seen if isinstance(one, Tokens))
    return view.task_id, tokens, "".join(str(one) for one in seen if not isinstance(one, Tokens))


async def streamed(engine: TemporalEngine, skill: str) -> str:
    """All that a caller of a streaming method reads."""
    app = a2a_app(engine, [getattr(guarded, name) for name in ("Open", "Guarded", "BySentence", "Changed")], Settings())
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Which card?"}]}
    params = {"message": message, "metadata": {"skill": skill}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), timeout=60) as http:
        answer = await http.post("http://127.0.0.1/", json=body, headers={"A2A-Version": "1.0"})
    assert answer.status_code == 200, answer.text
    return answer.text


async def written(engine: TemporalEngine, task_id: str) -> str:
    """The task's history and its journal."""
    history = await engine.client.get_workflow_handle(task_id).fetch_history()
    journal = [entry.model_dump_json() for entry in await collected(engine.journal(task_id))]
    payloads = b"".join(event.SerializeToString() for event in history.events)
    return "".join([history.to_json(), *journal, payloads.decode(errors="replace")])


def slowly() -> Trouble:
    """The answer with the marker, over a second and a half."""
    return Trouble(says=SAID, pace_s=0.15)


async def test_without_a_guard_it_is_seen(engine: TemporalEngine, model: OpenAIServer) -> None:
    """
    By a watcher and by a caller over A2A, while it is written: so these tests would see it.
    """
    model.say(slowly(), slowly())
    task_id, tokens, _ = await watched(engine, "open")

    assert guarded.seen(tokens)
    assert guarded.seen(await written(engine, task_id))
    assert guarded.seen(await streamed(engine, "open"))


async def test_what_a_guard_blocks_is_nowhere(
    engine: TemporalEngine, model: OpenAIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    No reader of any stream sees a digit of it, and neither history, journal nor log has it.
    """
    model.say(slowly(), slowly())
    task_id, tokens, entries = await watched(engine, "guarded")
    over_a2a, history = await streamed(engine, "guarded"), await written(engine, task_id)
    logs = "".join(capsys.readouterr())

    assert tokens == ""
    assert "I cannot say." in entries
    assert "I cannot say." in over_a2a
    for place in (entries, over_a2a, history, logs):
        assert not guarded.seen(place)
        assert "card is" not in place


async def test_a_guard_by_the_sentence_shows_what_has_passed(engine: TemporalEngine, model: OpenAIServer) -> None:
    """
    And nothing else, while it is written or later.
    """
    model.say(slowly(), slowly())
    task_id, tokens, entries = await watched(engine, "by_sentence")
    over_a2a = await streamed(engine, "by_sentence")

    assert tokens == "Your card is here. "
    for place in (entries, over_a2a, await written(engine, task_id)):
        assert not guarded.seen(place)
    assert "Your card is here. " in over_a2a


async def test_what_middleware_changes_in_the_task_is_not_shown_before(
    engine: TemporalEngine, model: OpenAIServer
) -> None:
    """
    Its text as the model wrote it is in the journal, as the record of the call, and in no stream.
    """
    model.say(slowly(), slowly())
    task_id, tokens, _ = await watched(engine, "changed")

    assert tokens == ""
    assert not guarded.seen(await streamed(engine, "changed"))
    assert (await engine.look(task_id)).messages[-1].text.startswith("Your card is here. It is    ,")


async def test_an_outage_of_ten_minutes_fails_no_task(engine: TemporalEngine, model: OpenAIServer) -> None:
    """
    The task retries, then it is blocked and asks again, until the model is back.
    """
    model.say(*[Trouble.status(503)] * 9, "Back again.")
    view = await engine.start("asks_once", text("x"))
    handle, skipper = engine.client.get_workflow_handle(view.task_id), TimeSkipper(engine.client)
    watching = asyncio.ensure_future(collected(engine.watch(view.task_id, follow=True)))
    while not watching.done():
        with suppress(RPCError):  # it has ended
            await skipper.fast_forward(handle, timedelta(seconds=60))
    entries = await collected(engine.journal(view.task_id))
    moves = [move.event.value for entry in entries for move in entry.moves]
    ended = await engine.look(view.task_id)

    assert (ended.status, ended.messages[-1].text) == (Status.COMPLETED, "Back again.")
    assert moves.count("retry") == 3
    assert "block_on_dependency" in moves
