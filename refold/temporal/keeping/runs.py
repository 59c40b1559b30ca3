"""The runs of a task as Temporal has them: their ids and their histories, without a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import server_refused


async def runs_of(connection: Connection, task_id: str) -> list[str]:
    """The run ids of a task, oldest first, as far back as the server still has them.

    Raises:
        TaskNotFound: There is no such task.
        EngineError: The server refuses, or does not answer.
    """
    run_id = (await connection.describe(task_id)).run_id
    found: list[str] = []
    while run_id:
        first = await _first_event(connection.client, task_id, run_id)
        if first is None:
            break
        found.append(run_id)
        run_id = first.workflow_execution_started_event_attributes.continued_execution_run_id
    return found[::-1]


async def histories(connection: Connection, task_id: str) -> AsyncIterator[dict[str, Any]]:
    """Temporal's history of each run, oldest first, as `{"run_id": …, "history": …}`.

    The history is JSON as `temporal workflow show --output json` prints it. Values are as they were sent, before
    encryption and storage; a journal that a run left in storage stays a reference, since the export holds its entries.
    """
    for run_id in await runs_of(connection, task_id):
        events = [event async for event in history_of(connection.client, task_id, run_id)]
        history = History(events=events)
        for payload in payloads_in(history):
            payload.CopyFrom(await plain(payload, connection.client.data_converter))
        yield {"run_id": run_id, "history": MessageToDict(history)}


async def history_of(client: Client, task_id: str, run_id: str) -> AsyncIterator[HistoryEvent]:
    """The events of a run; none where the server has deleted it."""
    handle = client.get_workflow_handle(task_id, run_id=run_id)
    try:
        async for event in handle.fetch_history_events():
            yield event
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise server_refused(error, f"read the history of task {task_id!r}") from None


def payloads_in(message: Message) -> Iterator[Payload]:
    """Every payload in a message of Temporal's, wherever in it."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            below = list(value.values())
        else:
            below = [value] if isinstance(value, Message) else list(value)
        for one in below:
            if isinstance(one, Message):
                yield from payloads_in(one)


async def _first_event(client: Client, task_id: str, run_id: str) -> HistoryEvent | None:
    async for event in history_of(client, task_id, run_id):
        assert event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
        return event
    return None


async def plain(payload: Payload, converter: DataConverter) -> Payload:
    """A payload as it was sent, before encryption and storage; the one that is given stays as it is.

    Raises:
        StorageError: It refers to a value that cannot be read.
        CodecError: It is encrypted, and this process lacks the key.
    """
    sent = Payload()
    sent.CopyFrom(payload)
    return await converter._transform_inbound_payload(sent)
