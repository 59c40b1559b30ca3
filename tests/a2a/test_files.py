"""Images of three megabytes over A2A: in with a message, to the model, and out as an artifact, over each binding."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from a2a.types import GetTaskRequest, Part, SendMessageConfiguration, TaskState
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from temporalio.client import Client

from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.a2a.conftest import said
from tests.a2a.grpc.test_binding import V1, Served, gateway, message
from tests.services.strict_responses import PICTURE, PNG, StrictResponses
from tests.temporal import painting_agents
from tests.temporal.conftest import PATIENT

pytestmark = pytest.mark.server

RAW = base64.b64encode(PNG).decode()
SHOWN = [{"text": "In blue."}, {"raw": RAW, "filename": "photo.png", "mediaType": "image/png"}]
REQUEST = {
    "message": said(parts=SHOWN),
    "configuration": {"acceptedOutputModes": ["text/plain", "image/png"]},
}
MADE = [{"raw": RAW, "filename": "file-1.png", "mediaType": "image/png"}]


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[StrictResponses]:
    """The model, which makes a picture each time."""
    with StrictResponses() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
async def painter(model: StrictResponses, client: Client, values: Folder) -> AsyncIterator[Served]:
    """A gateway to an agent that takes and makes images."""
    engine = TemporalEngine(client, "a2a-painting", patience=PATIENT)
    plugin = RefoldPlugin([painting_agents], storage=values)
    async with (
        make_worker(client, plugin, task_queue="a2a-painting"),
        gateway(engine, offered=[painting_agents.Painter]) as served,
    ):
        yield served


def seen(model: StrictResponses) -> bool:
    """The model was shown the picture, and found nothing wrong."""
    return RAW in str(model.requests[-1].body["input"]) and not model.refused


@pytest.mark.parametrize("binding", ["JSON-RPC", "REST"])
async def test_an_image_goes_in_and_comes_out(painter: Served, model: StrictResponses, binding: str) -> None:
    """
    The model sees it, and the answer has the picture that it makes.
    """
    model.say(PICTURE)
    if binding == "REST":
        answer = (await painter.calls.rest("POST", "/message:send", REQUEST)).json()
    else:
        answer = await painter.calls.result("SendMessage", REQUEST)
    task = answer["task"]

    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert [(made["name"], made["parts"]) for made in task["artifacts"]] == [("file-1.png", MADE)]
    assert seen(model)


async def test_an_image_over_grpc(painter: Served, model: StrictResponses) -> None:
    """
    A client that takes 4 MiB gets the picture without the history; one that takes more gets both.
    """
    model.say(PICTURE)
    parts = [Part(text="In blue."), Part(raw=PNG, filename="photo.png", media_type="image/png")]
    request = message(parts=parts, skill="painter")
    request.configuration.CopyFrom(SendMessageConfiguration(history_length=0))
    sent = (await painter.stub.SendMessage(request, metadata=[V1])).task
    options = [("grpc.max_receive_message_length", 16 * 1024 * 1024)]
    async with grpc.aio.insecure_channel(painter.target, options=options) as channel:
        stub: Any = A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        whole = await stub.GetTask(GetTaskRequest(id=sent.id), metadata=[V1])

    assert sent.status.state == TaskState.TASK_STATE_COMPLETED
    assert [part.raw for made in sent.artifacts for part in made.parts] == [PNG]
    assert whole.history[0].parts[1].raw == PNG
    assert seen(model)


async def test_a_file_of_another_type_is_refused(painter: Served) -> None:
    """
    Before anything begins, with the types that the agent takes.
    """
    parts = [{"raw": "AAAA", "filename": "a.wav", "mediaType": "audio/wav"}]
    refused = await painter.calls.error("SendMessage", {"message": said(parts=parts)})

    assert refused["code"] == -32005
    assert "image/*" in refused["message"]
