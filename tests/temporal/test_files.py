"""Files of several megabytes on a real server: in with a message, to the model, and out as an artifact."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from refold import Artifact, Content, Part, Status
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.services.strict_responses import PICTURE, PNG, THOUGHT, StrictResponses
from tests.temporal import painting_agents
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, settled


async def test_an_image_of_three_megabytes_goes_in_and_comes_out(client: Client, values: Folder) -> None:
    """
    The model sees it and hands over another one; history has neither, and nobody is told the model's reasoning.
    """
    with StrictResponses() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        server.say(PICTURE)
        plugin = RefoldPlugin([painting_agents], storage=values)
        engine = TemporalEngine(client, "painting", patience=PATIENT)
        async with make_worker(client, plugin, task_queue="painting"):
            said = Content(parts=(Part(text="In blue."), Part(raw=PNG, filename="photo.png")))
            view = await settled(engine, (await engine.start("painter", said)).task_id)
            entries = await collected(engine.journal(view.task_id))
        history = await client.get_workflow_handle(view.task_id).fetch_history()
        await replay_all(client, plugin, "painting")

    [request] = server.requests
    made = Part(raw=PNG, media_type="image/png", filename="file-1.png")
    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "Here: picture.")
    assert [one.as_artifact() for one in view.artifacts] == [Artifact(name="file-1.png", parts=(made,))]
    assert len(request.body["input"][0]["content"][1]["image_url"]) > len(PNG)
    assert server.refused == []
    assert sum(event.ByteSize() for event in history.events) < 40_000
    assert THOUGHT not in view.model_dump_json()
    assert len(entries) == 2
