"""The official Python client does with a gateway all that it can do: over both bindings, and as a client of 0.3."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.client.client_factory import minimal_agent_card
from a2a.types import (
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from google.protobuf.struct_pb2 import Struct
from starlette.applications import Starlette
from starlette.routing import Mount

from refold.a2a import Settings, a2a_app
from refold.a2a.data import value_of
from refold.a2a.serve import bound, url_of
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import serving

JSONRPC, REST = "JSONRPC", "HTTP+JSON"


@pytest.fixture
async def url(fake: FakeEngine) -> AsyncIterator[str]:
    """A gateway on a port, over an engine in memory."""
    sock = bound("127.0.0.1", 0)
    where = url_of(sock, "127.0.0.1")
    async with serving(a2a_app(fake, skills.ALL, Settings(url=where)), sock):
        yield where


def request(skill: str, *parts: Part, task: Task | None = None) -> SendMessageRequest:
    """A message to a skill, or to a task."""
    metadata = Struct()
    metadata.update({"skill": skill})
    message = Message(message_id="m-1", role=Role.ROLE_USER, parts=parts or [Part(text="Hello")])
    if task is not None:
        message.task_id = task.id
    return SendMessageRequest(message=message, metadata=metadata)


async def last(client: Client, sent: SendMessageRequest) -> Task:
    """The task that a message comes to, without a stream."""
    found = [response async for response in client.send_message(sent)]
    assert len(found) == 1
    return found[0].task


def states(found: list[StreamResponse]) -> list[str]:
    """The states that a stream tells of, in order."""
    told = [one.task.status if one.HasField("task") else one.status_update.status for one in found]
    return [TaskState.Name(status.state).removeprefix("TASK_STATE_") for status in told if status.state]


async def does_it_all(card: AgentCard | str, binding: str, *, lists: bool = True, old: bool = False) -> None:
    """Every method once.

    Args:
        card: The card, or where it is.
        binding: What the client speaks.
        lists: It lists tasks, too.
        old: It is a client of 0.3, whose streams end at each question, also at one that stands as they begin.
    """
    async with httpx.AsyncClient(timeout=60) as http:

        def config(*, streaming: bool) -> ClientConfig:
            return ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])

        client = await create_client(card, config(streaming=False))
        streaming = await create_client(card, config(streaming=True))

        done = await last(client, request("echo", Part(text="Hi"), Part(data=value_of({"n": 7}))))
        assert done.status.state == TaskState.TASK_STATE_COMPLETED
        assert [part.WhichOneof("content") for part in done.artifacts[0].parts] == ["text", "data"]

        asked = await last(client, request("ask"))
        assert asked.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        follower = streaming.subscribe(SubscribeToTaskRequest(id=asked.id))
        first = await anext(follower)
        assert first.task.id == asked.id

        asked = await last(client, request("ask", Part(text="Ada"), task=asked))
        answered = [
            one async for one in streaming.send_message(request("ask", Part(data=value_of({"number": 3})), task=asked))
        ]
        assert states(answered)[-1] == "COMPLETED"
        followed = states([one async for one in follower])
        assert followed == [] if old else followed[-1] == "COMPLETED"

        streamed = [one async for one in streaming.send_message(request("echo"))]
        assert streamed[0].HasField("task")
        assert states(streamed)[-1] == "COMPLETED"

        again = await client.get_task(GetTaskRequest(id=asked.id, history_length=1))
        assert again.status.message.parts[0].text == "Ada: 3"
        assert len(again.history) == 1

        waits = await last(client, request("ask"))
        canceled = await client.cancel_task(CancelTaskRequest(id=waits.id))
        assert canceled.status.state == TaskState.TASK_STATE_CANCELED

        if lists:
            found = await client.list_tasks(ListTasksRequest(page_size=50))
            assert {done.id, asked.id} <= {task.id for task in found.tasks}


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_a_client_does_it_all(url: str, binding: str) -> None:
    """
    It reads the card, sends, streams, answers, follows, lists and cancels.
    """
    await does_it_all(url, binding)


async def test_a_client_of_0_3_does_it_all_but_list(url: str) -> None:
    """
    Under the old method names, at the same address.
    """
    card = minimal_agent_card(url, [JSONRPC])
    del card.supported_interfaces[:]
    card.supported_interfaces.append(AgentInterface(url=url, protocol_binding=JSONRPC, protocol_version="0.3"))
    card.capabilities.streaming = True

    await does_it_all(card, JSONRPC, lists=False, old=True)


async def test_a_client_does_it_all_on_temporal(served: str) -> None:
    """
    The same, with a worker behind it. What is listed lags a little there.
    """
    await does_it_all(served, JSONRPC, lists=False)


async def test_a_client_calls_a_gateway_that_is_mounted(fake: FakeEngine) -> None:
    """
    In somebody's application, under a path of their choice.
    """
    sock = bound("127.0.0.1", 0)
    where = f"{url_of(sock, '127.0.0.1')}/agents/first"
    gateway = a2a_app(fake, skills.ALL, Settings(url=where))
    app = Starlette(routes=[Mount("/agents/first", gateway)])
    app.state.open_streams = gateway.state.open_streams
    async with serving(app, sock):
        await does_it_all(where, JSONRPC)
        await does_it_all(where, REST)
