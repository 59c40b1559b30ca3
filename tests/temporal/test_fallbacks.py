"""A model that is out of service, and the one that takes over, on a real server and with strict providers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from temporalio.client import Client

from refold import ChatResult, Status
from refold.cost import model_calls
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.services.openai_server import Trouble
from tests.services.strict import StrictAnthropic, StrictOpenAI
from tests.temporal import fallback_agents
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, settled, text


@pytest.fixture
def servers() -> Iterator[tuple[StrictOpenAI, StrictAnthropic]]:
    """Both providers."""
    with StrictOpenAI() as openai, StrictAnthropic() as anthropic, pytest.MonkeyPatch.context() as patch:
        for name, value in {**openai.environment, **anthropic.environment}.items():
            patch.setenv(name, value)
        yield openai, anthropic


async def test_the_second_model_takes_over_at_the_third_503(
    client: Client, values: Folder, servers: tuple[StrictOpenAI, StrictAnthropic]
) -> None:
    """
    In the middle of a conversation: the other provider is sent what was said so far, in a form that it accepts, and
    gets the results of its own tool calls; journal, cost and replies name the model that answered.
    """
    openai, anthropic = servers
    openai.say('look_up(word="tea")', *[Trouble.status(503)] * 3)
    anthropic.say('look_up(word="milk")', "Both are there.")
    plugin = RefoldPlugin([fallback_agents], [fallback_agents.look_up], storage=values)
    engine = TemporalEngine(client, "fallbacks", patience=PATIENT)
    async with make_worker(client, plugin, task_queue="fallbacks"):
        view = await settled(engine, (await engine.start("patient", text("Tea? Milk?"))).task_id)
        entries = await collected(engine.journal(view.task_id))
    await replay_all(client, plugin, "fallbacks")

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "Both are there.")
    assert [len(server.requests) for server in servers] == [4, 2]
    assert openai.refused == anthropic.refused == []
    notes = [entry.note.rpartition("; ")[2] for entry in entries if "503" in entry.note]
    assert notes == ["retry 1 of 3 in 0.01 s", "retry 2 of 3 in 0.02 s", "asks anthropic:claude-test instead"]
    models = [entry.event.reply.model for entry in entries if isinstance(entry.event, ChatResult)]
    assert models == ["openai:gpt-test", *["anthropic:claude-test"] * 2]
    assert [call.model for call in model_calls(view.task_id, entries)] == models
