"""Who asks for a task meets workers of other code: it changes nothing about the task, and those that fit answer."""

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
from tests.temporal.changes import trials as changes
from tests.temporal.changes.rows import Place
from tests.temporal.recorded import purchase
from tests.temporal.recorded.deploying import Site, changed
from tests.temporal.recorded.test_changed_code import happened
from tests.temporal.test_task import collected
from tests.waiting import a_moment

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
            await a_moment()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    async with site.deployed(purchase):
        await happened(site, id, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, times=2)
        view = await site.go_on(id, 1)

    assert view.status is Status.COMPLETED
    assert purchase.PAID.count((id, 5)) == 1


async def test_old_workers_beside_new_ones_answer_for_their_tasks(
    hasty_client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whoever looks at a task or answers it during a rolling deploy meets workers of both: only those that fit answer.
    """
    monkeypatch.syspath_prepend(tmp_path)
    site = changes.Site(hasty_client, values, tmp_path, ["open_question", "gone"])
    met = [changes.Trial(key, Place.QUESTION, "beside") for key in ("open_question", "gone")]
    async with site.worker("old"):
        await changes.each(met, site.begin)
        async with site.worker("new"):
            for _ in range(ASKING):
                for one in met:
                    assert (await site.engine.look(one.id)).note == ""
                    assert await collected(site.engine.journal(one.id)) == one.before
            await changes.each(met, site.push)

    assert [one.broken for one in met] == [None, None]
