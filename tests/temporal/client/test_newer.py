"""Clients of an earlier release than the workers: what one of them cannot read is told, and hides nothing else."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from refold import Content, Status
from refold.core.content import as_content
from refold.formats import NewerFormat
from refold.temporal import TemporalEngine
from refold.temporal.data.payloads import PartsCodec, data_converter
from refold.temporal.data.storage import Folder
from tests.temporal.test_task import settled

Read = Callable[[TemporalEngine, str], Awaitable[object]]


class Newer(PartsCodec):
    """Data as a newer release writes it: all that has a field of this name has one more.

    Args:
        values: Where stored values are.
        beside: The field's name.
    """

    def __init__(self, values: Folder, beside: str) -> None:
        super().__init__(values)
        self.beside = beside

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata=one.metadata, data=self._newer(one.data), external_payloads=one.external_payloads)
            for one in await super().decode(payloads)
        ]

    async def read(self, key: str) -> bytes:
        return self._newer(await super().read(key))

    def _newer(self, data: bytes) -> bytes:
        def more(value: dict[str, Any]) -> dict[str, Any]:
            return {**value, "newer_field": 1} if self.beside in value else value

        return json.dumps(json.loads(data, object_hook=more)).encode() if data.startswith(b"{") else data


def reading(client: Client, values: Folder, beside: str) -> TemporalEngine:
    """An engine of a release that does not know the field."""
    converter = data_converter(values)
    object.__setattr__(converter, "payload_codec", Newer(values, beside))
    config: dict[str, Any] = {**client.config(), "data_converter": converter}
    return TemporalEngine(Client(**config), "tests")


async def _entries(engine: TemporalEngine, task_id: str) -> None:
    assert [entry async for entry in engine.journal(task_id)]


async def _past(engine: TemporalEngine, task_id: str) -> None:
    assert [one async for one in engine.past(task_id)]


ENDED: list[Read] = [_entries, _past, TemporalEngine.record]


@pytest.mark.parametrize(
    ("beside", "status", "reads"),
    [
        pytest.param("event", Status.INPUT_REQUIRED, [_entries, _past], id="entries"),
        pytest.param("event", Status.COMPLETED, ENDED, id="entries of an ended task"),
        pytest.param("status_at", Status.INPUT_REQUIRED, [TemporalEngine.record], id="record"),
        pytest.param("sha256", Status.COMPLETED, [*ENDED, TemporalEngine.look], id="result"),
        pytest.param("sha256", Status.CANCELED, [*ENDED, TemporalEngine.look], id="result of a canceled task"),
    ],
)
async def test_what_a_newer_release_has_added_is_an_error_of_the_engine(
    engine: TemporalEngine, client: Client, values: Folder, beside: str, status: Status, reads: list[Read]
) -> None:
    """
    So a gateway's list, the page and a projection leave this task out, and go on with the others. What a newer worker
    left of a task is the result of a skill: nobody takes the task's last words for lost.
    """
    task_id = (await engine.start("talk", as_content("Ada"))).task_id
    await settled(engine, task_id)
    if status is Status.CANCELED:
        await engine.cancel(task_id)
    if status is Status.COMPLETED:
        await engine.send(task_id, as_content("Ada"))
        await settled(engine, task_id)
        await engine.send(task_id, Content.from_data({"years": 36}))
    assert (await settled(engine, task_id)).status is status

    for read in reads:
        with pytest.raises(NewerFormat, match=r"newer_field: Extra inputs are not permitted.*; use the release that"):
            await read(reading(client, values, beside), task_id)
