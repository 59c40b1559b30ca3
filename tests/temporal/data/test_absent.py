"""What a client sends and no worker can get is refused for good; whatever may come back is waited for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError
from temporalio.worker import Worker

from refold import Content, InputRejected, Status
from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data import absent, failures
from refold.temporal.data.payloads import THRESHOLD_BYTES, Stored, data_converter, reference_in
from refold.temporal.data.storage import Folder, Off, Storage, ValueMissing
from refold.temporal.dev import DevServer
from refold.temporal.encryption import Encryption
from refold.temporal.worker.task import outcomes
from tests.temporal import skills
from tests.temporal.conftest import PATIENT, failures_of_the_worker
from tests.temporal.data.asking import AsksAPart
from tests.temporal.test_odd_payloads import journal, payload, referring, signal, start, unharmed, update
from tests.temporal.test_task import settled, text
from tests.waiting import a_moment

LARGE = "x" * (2 * THRESHOLD_BYTES)


class Hiding(Folder):
    """A folder that does not find what is written while it hides, as long as it does."""

    hides = False
    hidden = frozenset[str]()

    async def put(self, key: str, data: bytes) -> None:
        if Hiding.hides:
            Hiding.hidden |= {key}
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        if Hiding.hides and key in Hiding.hidden:
            raise ValueMissing(key, self.place)
        return await super().get(key)


KEYS = {"here": os.urandom(32), "other": os.urandom(32)}
OTHER = Encryption({"other": KEYS["other"]})


class Reading(Encryption):
    """Reads what is encrypted, and writes plain values."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


class Site:
    """One server's queue, whose workers come and go."""

    def __init__(self, client: Client, storage: Folder) -> None:
        self.client, self.storage = client, storage
        self.engine = TemporalEngine(client, f"absent-{uuid4().hex[:8]}", patience=PATIENT)

    def worker(
        self, codec: PayloadCodec | None = None, storage: Storage | None = None, *, part: str = "all"
    ) -> AbstractAsyncContextManager[Worker]:
        """A worker without any memory of the tasks; perhaps of tasks or of effects alone."""
        storage = self.storage if storage is None else storage
        config: dict[str, Any] = {
            **self.client.config(),
            "data_converter": data_converter(storage, codec),
        }
        config["plugins"] = []
        served = [] if part == "effects" else [skills, AsksAPart]
        plugin = RefoldPlugin(served, skills.TOOLS, model="scripted:demo", storage=storage)
        queue = self.engine.task_queue
        return make_worker(Client(**config), plugin, task_queue=queue, no_remote_activities=part == "tasks")

    async def waiting(self) -> TaskView:
        """A task that waits for a message."""
        return await settled(self.engine, (await self.engine.start("counts", text("go"))).task_id)

    async def failure(self, task_id: str) -> str:
        """What a workflow task of the task failed with; waits for one."""
        while True:
            with suppress(RPCError):  # a part that has not begun
                history = await self.client.get_workflow_handle(task_id).fetch_history()
                if found := failures_of_the_worker(history.events):
                    return found[-1].message
            await asyncio.sleep(0.2)


@pytest.fixture
async def site(hasty_server: DevServer, folder: Folder) -> Site:
    """A queue, and a folder of its own."""
    return Site(
        await Client.connect(hasty_server.address, data_converter=data_converter(folder, Reading(KEYS))), folder
    )


async def stored(site: Site, value: Any) -> tuple[Payload, Callable[[], None], Callable[[], None]]:
    """A reference to a stored value, and what takes the value away and brings it back."""
    [sent] = await site.client.data_converter.encode([value])
    claim = reference_in(sent)
    assert claim is not None
    key = claim.claim_data["sha256"]
    path = site.storage.path / key[:2] / key
    away = Path(f"{path}.away")

    def leave() -> None:
        path.replace(away)

    def come_back() -> None:
        away.replace(path)

    return sent, leave, come_back


async def test_what_was_refused_stays_refused(site: Site) -> None:
    """
    A message that refers to a value that is not there is refused, and the value comes later: a worker that replays the
    task refuses the message, too, and takes the same one when it is sent again.
    """
    sent, leave, come_back = await stored(site, LARGE)
    leave()
    async with site.worker():
        view = await site.waiting()
        await signal(site.engine, view.task_id, "message", sent)
        refused = await journal(site.engine, view.task_id)
        assert "the value" in refused[-1].refused
        assert str(site.storage.path) not in refused[-1].refused
    come_back()
    async with site.worker():
        assert await journal(site.engine, view.task_id) == refused
        await signal(site.engine, view.task_id, "message", sent)
        taken = await journal(site.engine, view.task_id)
        assert taken[:-1] == refused
        assert not taken[-1].refused
    async with site.worker():
        assert await journal(site.engine, view.task_id) == taken
        assert (await site.engine.look(view.task_id)).note == ""
        await site.engine.send(view.task_id, text("stop"))
        assert (await settled(site.engine, view.task_id)).status is Status.COMPLETED
    await unharmed(site.engine, view.task_id)


@pytest.mark.parametrize("how", ["signal", "update", "start"])
async def test_what_was_taken_is_waited_for(site: Site, how: str) -> None:
    """
    An input was read and its value is gone later: a worker that replays the task changes nothing, says which value is
    missing, and goes on when it is back.
    """
    sent, leave, come_back = await stored(site, LARGE)
    async with site.worker():
        if how == "start":
            task_id = await start(site.engine, "counts", sent)
        else:
            task_id = (await site.waiting()).task_id
            await (signal if how == "signal" else update)(site.engine, task_id, "message", sent)
        before = await journal(site.engine, task_id)
        assert not before[-1].refused
    leave()
    async with site.worker():
        await signal(site.engine, task_id, "message", payload("more"))
        assert "the value" in await site.failure(task_id)
        come_back()
        after = await journal(site.engine, task_id)
        assert after[:-1] == before
        assert not after[-1].refused
        await site.engine.cancel(task_id)


async def test_an_outage_refuses_nothing(site: Site, folder: Folder) -> None:
    """
    The folder is away when a message comes that refers to a value in it: the task waits, and takes the message.
    """
    sent, *_ = await stored(site, LARGE)
    async with site.worker():
        view = await site.waiting()
        away = folder.path.rename(folder.path.with_name("away"))
        await signal(site.engine, view.task_id, "message", sent)
        assert "it does not exist" in await site.failure(view.task_id)
        away.rename(folder.path)
        after = await journal(site.engine, view.task_id)
        assert [bool(one.refused) for one in after[view.seq :]] == [False]
        await site.engine.cancel(view.task_id)


async def test_a_mount_point_that_is_not_ours_refuses_nothing(
    site: Site, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where no disk is mounted, the folder may exist, and be root's: a worker that could store nothing there waits.
    """
    sent, *_ = await stored(site, LARGE)
    async with site.worker():
        view = await site.waiting()
        away = folder.path.rename(folder.path.with_name("away"))
        folder.path.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(os, "access", lambda *_: False)  # the tests may run as root
            await signal(site.engine, view.task_id, "message", sent)
            assert "the value" in await site.failure(view.task_id)
        folder.path.rmdir()
        away.rename(folder.path)
        after = await journal(site.engine, view.task_id)
        assert [bool(one.refused) for one in after[view.seq :]] == [False]
        await site.engine.cancel(view.task_id)


async def test_a_part_waits_for_its_input(hasty_server: DevServer, tmp_path: Path) -> None:
    """
    What refold itself wrote is never refused, although storage does not find it.
    """
    storage = Hiding(tmp_path)
    site = Site(await Client.connect(hasty_server.address, data_converter=data_converter(storage)), storage)
    async with site.worker():
        Hiding.hides = True
        try:
            task_id = (await site.engine.start("asks_a_part", text("go"))).task_id
            assert "the value" in await site.failure(f"{task_id}/1.1")
        finally:
            Hiding.hides = False
        assert (await settled(site.engine, task_id)).status is Status.INPUT_REQUIRED
        await site.engine.cancel(task_id)


async def test_a_reference_to_a_part_of_a_value_is_refused(site: Site) -> None:
    """
    What is stored there is a journal and no input; it is not damaged.
    """
    await site.client.data_converter.encode([Stored[str](value=LARGE)])
    async with site.worker():
        view = await site.waiting()
        [key] = [path.name for path in site.storage.path.rglob("*") if path.is_file()][:1]
        await signal(site.engine, view.task_id, "message", referring(key))
        assert (await journal(site.engine, view.task_id))[-1].refused
        await site.engine.cancel(view.task_id)
    await unharmed(site.engine, view.task_id)


@pytest.mark.parametrize("ring", [None, Encryption({"here": KEYS["here"]})], ids=["no-codec", "another-key"])
async def test_a_key_that_nobody_has(site: Site, monkeypatch: pytest.MonkeyPatch, ring: Encryption | None) -> None:
    """
    An update is refused at once, since its sender hears of it. A signal waits for a worker with the key, for a while,
    and is then refused. A worker that has the key by then refuses it too.
    """
    [sent] = await OTHER.encode([payload("hello")])
    async with site.worker(ring):
        view = await site.waiting()
        refused_now = await update(site.engine, view.task_id, "message", sent)
        assert "the key 'other'" in refused_now or (ring and refused_now == "Encoded failure")
        await unharmed(site.engine, view.task_id)
        await signal(site.engine, view.task_id, "message", sent)
        assert "encrypted by the key 'other'" in await site.failure(view.task_id)
        monkeypatch.setattr(absent, "PATIENCE_S", 0)
        refused = await journal(site.engine, view.task_id)
        assert "the key 'other'" in refused[-1].refused
    monkeypatch.undo()
    async with site.worker(Encryption(KEYS)):
        assert await journal(site.engine, view.task_id) == refused
        assert (await site.engine.look(view.task_id)).note == ""
        await site.engine.cancel(view.task_id)


async def test_a_question_by_a_key_that_no_worker_has(site: Site) -> None:
    """
    Whoever asks with a key before the workers have it is told which one is missing.
    """
    config: dict[str, Any] = {**site.client.config(), "plugins": []}
    config["data_converter"] = data_converter(site.storage, Encryption(dict(reversed(KEYS.items()))))
    early = TemporalEngine(Client(**config), site.engine.task_queue, patience=PATIENT)
    async with site.worker(Encryption({"here": KEYS["here"]})):
        view = await site.waiting()
        with pytest.raises(InputRejected, match="encrypted by the key 'other', which is not here"):
            await journal(early, view.task_id)
        await site.engine.cancel(view.task_id)


async def test_a_key_that_is_rolled_out(site: Site) -> None:
    """
    A signal that comes before its key is taken once a worker has the key.
    """
    [sent] = await OTHER.encode([payload("hello")])
    async with site.worker():
        view = await site.waiting()
        await signal(site.engine, view.task_id, "message", sent)
        assert "encrypted by the key 'other'" in await site.failure(view.task_id)
    async with site.worker(OTHER):
        after = await journal(site.engine, view.task_id)
        assert [bool(one.refused) for one in after[view.seq :]] == [False]
        await site.engine.cancel(view.task_id)


@pytest.mark.parametrize("ring", [None, Encryption({"stray": os.urandom(32)})], ids=["no-codec", "another-key"])
async def test_an_effect_waits_for_a_worker_with_its_key(
    site: Site, monkeypatch: pytest.MonkeyPatch, ring: Encryption | None
) -> None:
    """
    A worker without it performs nothing, and the task says which key it lacks, also where nobody has that worker's own.
    """
    monkeypatch.setattr(failures, "PAUSE", timedelta(milliseconds=10))
    async with site.worker(OTHER, part="tasks"):
        async with site.worker(ring, part="effects"):
            task_id = (
                await site.engine.start("stubborn", Content.from_data({"key": uuid4().hex, "failures": 0}))
            ).task_id
            while not (view := await site.engine.look(task_id)).pending or not view.pending[0].blocked:
                await a_moment()
            assert "encrypted by the key 'other'" in str(view.pending[0].failure)
        async with site.worker(OTHER, part="effects"):
            await site.engine.resolve(task_id, retry=True)
            assert (await settled(site.engine, task_id)).status is Status.COMPLETED


async def test_an_effect_that_no_worker_can_read_is_a_persons(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A worker with the key may have performed it and been lost, so the skill is not told that it never took place; and
    what a person then says counts, though no worker can write it down.
    """
    monkeypatch.setattr(failures, "PAUSE", timedelta(milliseconds=10))
    monkeypatch.setattr(outcomes, "LOST_S", 0.0)  # no worker has come for an hour
    async with site.worker(OTHER, part="tasks"), site.worker(None, part="effects"):
        view = await site.engine.start("stubborn", Content.from_data({"key": uuid4().hex, "failures": 0}))
        asked = await settled(site.engine, view.task_id)
        assert ["the key 'other'" in one.failure for one in asked.unresolved] == [True]
        await site.engine.resolve(view.task_id, outcome=3)
        ended = await settled(site.engine, view.task_id)

        assert (ended.status, ended.messages[-1].text) == (Status.COMPLETED, "call 3")


async def test_a_worker_without_storage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It waits for a while for somebody to give it one, and then refuses what refers to a value.
    """
    async with site.worker(storage=Off()):
        view = await site.waiting()
        await signal(site.engine, view.task_id, "message", referring("0" * 64))
        assert "REFOLD_STORAGE" in await site.failure(view.task_id)
        monkeypatch.setattr(absent, "PATIENCE_S", 0)
        assert (await journal(site.engine, view.task_id))[-1].refused
        await site.engine.cancel(view.task_id)


async def test_many_forged_references(site: Site) -> None:
    """
    Each is one marker in history, and the task answers.
    """
    async with site.worker():
        view = await site.waiting()
        for number in range(120):
            await signal(site.engine, view.task_id, "message", referring(f"{number:064x}"))
        entries = await journal(site.engine, view.task_id)
        assert len(entries) == view.seq + 120
        assert all(one.refused for one in entries[view.seq :])
    async with site.worker():
        assert await journal(site.engine, view.task_id) == entries
        await site.engine.cancel(view.task_id)
    await unharmed(site.engine, view.task_id)
