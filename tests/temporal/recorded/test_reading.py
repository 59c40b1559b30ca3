"""How a worker reads what was recorded of a task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec

from refold import Content, UserMessage
from refold.conversation import request_of
from refold.core.chat import EMPTY, Prior, UserSaid
from refold.core.commands import (
    CallActivity,
    CallChat,
    CallSkill,
    CallTool,
    CallWorkflow,
    Command,
    PartBudget,
)
from refold.core.fold.journal import Entry, Issued
from refold.divergence import as_recorded, first_difference
from refold.temporal import TemporalEngine
from refold.temporal.data.codec import CodecUnusable
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, StorageUnusable
from refold.temporal.data.wire import CHAT_ACTIVITY, TaskStart
from refold.temporal.recorded.reading import FromServer, Run, words_of
from tests.temporal.test_task import settled


class KeysAway(PayloadCodec):
    """A codec whose keys are on another machine."""

    def __init__(self) -> None:
        self.away = True

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if self.away:
            raise RuntimeError("the keys cannot be reached")
        return list(payloads)


class DiskAway(Folder):
    """A folder whose disk does not answer."""

    away = True

    async def get(self, key: str) -> bytes:
        if DiskAway.away:
            raise StorageUnusable(self.place, "input/output error")
        return await super().get(key)


async def reading(engine: TemporalEngine, converter: DataConverter, skill: str, said: str) -> tuple[FromServer, Run]:
    """A worker's reader with this converter, and the run of a task that has settled."""
    view, at = await engine.start(skill, Content.from_text(said)), engine.client
    await settled(engine, view.task_id)
    description = await at.get_workflow_handle(view.task_id).describe()
    config: dict[str, Any] = {**at.config(), "data_converter": converter}
    reader = FromServer(Client(**config), "a worker")
    reader.attach()
    return reader, Run(workflow_id=view.task_id, run_id=description.run_id)


async def test_a_history_that_could_not_be_read_is_read_again(engine: TemporalEngine, values: Folder) -> None:
    """
    What was read is kept for the next attempt of the workflow task, and an error is not: the task would meet it for as
    long as its worker lives. Nor does the task go on unverified meanwhile.
    """
    codec = KeysAway()
    reader, run = await reading(engine, data_converter(values, codec), "talk", "hello")

    with pytest.raises(CodecUnusable, match="KeysAway cannot decrypt a value: RuntimeError"):
        await asyncio.wrap_future(reader.past(run))
    codec.away = False
    past = await asyncio.wrap_future(reader.past(run))

    assert past is not None
    assert past.marks
    assert reader.past(run).done(), "and now it is kept"


async def test_words_in_a_storage_that_is_away_are_read_again(
    engine: TemporalEngine, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The task does not go on unverified meanwhile.
    """
    disk = data_converter(DiskAway(values.path))
    reader, run = await reading(engine, disk, "parent", "hello " * 10_000)

    with pytest.raises(StorageUnusable, match="input/output error"):
        await asyncio.wrap_future(reader.words(run))
    monkeypatch.setattr(DiskAway, "away", False)
    words = await asyncio.wrap_future(reader.words(run))

    assert words is not None
    assert reader.words(run).done(), "and now it is kept"


STARTED = TaskStart(message=UserMessage(content=Content.from_text("go")), budget=PartBudget(model_calls=3))
TURN = CallChat(id="turn", say=(UserSaid(content=Content.from_text("hello")),))
TOOL = CallTool(id="find", name="find")


@pytest.mark.parametrize(
    ("kind", "type", "given", "recorded"),
    [
        (
            "child",
            "sub",
            STARTED,
            CallSkill(id="find", skill="sub", input=Content.from_text("go"), budget=PartBudget(model_calls=3)),
        ),
        ("child", "other", "x", CallWorkflow(id="find", name="other", args=("x",))),
        ("activity", "mail", "x", CallActivity(id="find", name="mail", args=("x",))),
        ("activity", CHAT_ACTIVITY, request_of(TURN, Prior(thread=EMPTY, framed=True)), TURN.changed({"id": "find"})),
    ],
    ids=["part", "workflow", "activity", "chat"],
)
@pytest.mark.parametrize("now", [TOOL, None], ids=["a tool", "nothing"])
async def test_a_command_is_read_though_the_code_asks_for_another_kind(
    kind: str, type: str, given: Any, recorded: Command, now: Command | None
) -> None:
    """
    The difference names what was recorded. Where the code asks for nothing, what is called stands for the author's id.
    """
    converter = data_converter()
    payloads = Payloads(payloads=await converter.encode([given]))
    event = HistoryEvent(event_id=5)
    if kind == "child":
        child = event.start_child_workflow_execution_initiated_event_attributes
        child.workflow_id, child.workflow_type.name = "T/1.1", type
        child.input.CopyFrom(payloads)
    else:
        activity = event.activity_task_scheduled_event_attributes
        activity.activity_id, activity.activity_type.name = "T/1.1", type
        activity.input.CopyFrom(payloads)
    words = await words_of([event], converter)

    commands = () if now is None else (Issued(invocation_id="T/1.1", command=now),)
    entry = Entry(seq=1, at=datetime(2026, 1, 1, tzinfo=UTC), event=STARTED.message, commands=commands)
    [command] = as_recorded("T", entry, None, words.inputs).commands

    called = {"id": command.command.id} if now is None else {}
    assert command.command == recorded.changed(called)
    found = first_difference("T", [entry], {}, words.inputs)
    assert found.field.startswith("commands.")


async def test_who_completed_a_workflow_task_stands_in_the_history(engine: TemporalEngine, client: Client) -> None:
    """
    A worker has completed it only under its own identity, and only the one that the event started. One that history
    does not have was dropped.
    """
    view = await engine.start("talk", Content.from_text("hello"))
    await settled(engine, view.task_id)
    handle = client.get_workflow_handle(view.task_id)
    run = Run(workflow_id=view.task_id, run_id=(await handle.describe()).run_id)
    events = (await handle.fetch_history()).events
    done = [event for event in events if event.HasField("workflow_task_completed_event_attributes")]

    for event in done:
        identity = event.workflow_task_completed_event_attributes.identity
        for worker, started, expected in [
            (identity, event.event_id - 1, True),
            (identity, event.event_id, False),
            (f"{identity}, another", event.event_id - 1, False),
        ]:
            reader = FromServer(client, worker)
            reader.attach()
            assert await asyncio.wrap_future(reader.completed(run, started)) is expected
    assert done
    reader, newest = FromServer(client, "any"), events[-1].event_id
    reader.attach()
    for started, dropped in [(newest, False), (newest + 1, True)]:
        assert await asyncio.wrap_future(reader.completed(run, started)) is dropped
