"""Who asks for a task that stands still changes nothing about it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from refold import Status
from refold.engine import NoWorker
from refold.temporal.data.storage import Folder
from tests.temporal.recorded import purchase
from tests.temporal.recorded.deploying import Site, changed
from tests.temporal.recorded.test_changed_code import happened
from tests.temporal.test_task import collected

ASKING = 8


async def test_a_task_that_is_asked_while_it_fails_goes_on(
    hasty_client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Queries come along with a workflow task that fails, and with its next attempts. None of them counts as done because
    the queries are answered: the event is taken by the code that fits.
    """
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(hasty_client, values)
    async with site.deployed(purchase):
        id = await site.bought(1)
        purchase.BUSY.add(id)
        await site.answer(id)
        await happened(site, id, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED)
        before = await collected(site.engine.journal(id))

    async def ask() -> None:
        while True:
            with suppress(NoWorker):
                assert await collected(site.engine.journal(id)) == before
            await site.engine.look(id)

    async with site.deployed(changed(tmp_path, {"Here is what": "There is what"})):
        asking = asyncio.gather(*(ask() for _ in range(ASKING)))
        purchase.BUSY.remove(id)
        handle = hasty_client.get_workflow_handle(id)
        while (await handle.describe()).raw_description.pending_workflow_task.attempt < 3:
            pass
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    async with site.deployed(purchase):
        await happened(site, id, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, times=2)
        view = await site.go_on(id, 1)

    assert view.status is Status.COMPLETED
    assert purchase.PAID.count((id, 5)) == 1
