"""Purges on a real Temporal server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
    WorkflowExecutionAsyncIterator,
)
from temporalio.service import RPCError, RPCStatusCode

from refold import Content, InputRejected, Status
from refold.cli.text.output import Output
from refold.cli.verb import Call
from refold.cli.verbs import records
from refold.effects.ledger.purging import PurgedReceipts
from refold.effects.ledger.store import Store, store_of
from refold.engine import TaskNotFound
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.client import views
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, Off, Storage
from refold.temporal.dev import DevServer
from refold.temporal.keeping.purge import Purge, Purged
from tests.export import skills
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import part_of, settled, text
from tests.waiting import a_moment

QUEUE = "purges"
LONG = "a long note " * 5_000

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
async def client(lone_server: DevServer, values: Folder) -> Client:
    """A client of this module's server."""
    converter = data_converter(values)
    return await Client.connect(lone_server.address, namespace=lone_server.namespace, data_converter=converter)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The ledger of this module's worker."""
    with pytest.MonkeyPatch.context() as patch:
        file = str(tmp_path_factory.mktemp("ledger") / "ledger.db")
        patch.setenv("REFOLD_LEDGER", file)
        yield store_of(file)


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder, store: Store) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker whose tools keep receipts."""
    tools: list[Any] = [skills.pay, skills.price, skills.book]
    plugin = RefoldPlugin([skills], tools, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)


@pytest.fixture
def purge(engine: TemporalEngine, store: Store) -> Purge:
    """A purge of the server and the ledger."""
    return engine.purge(PurgedReceipts(store, engine.client.namespace))


async def purged(purge: Purge, *task_ids: str, dry: bool = False) -> dict[str, Purged]:
    return {one.task_id: one async for one in purge.run(task_ids, dry=dry)}


async def gone(engine: TemporalEngine, task_id: str) -> bool:
    """Whether the server has deleted a task: it does so in its own time."""
    while True:
        try:
            await engine.connection.describe(task_id)
        except TaskNotFound:
            return True
        await a_moment()


def aged(values: Folder) -> set[Path]:
    """The values' files, an hour older than they are."""
    files = {file for file in values.path.rglob("*") if file.is_file()}
    for file in files:
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 3600))
    return files


def new(name: str) -> str:
    return f"{name}-{uuid4().hex[:6]}"


async def bought(engine: TemporalEngine, shop: str = "Ada", task_id: str | None = None) -> str:
    """A task that has paid, through a part of it."""
    task_id = task_id or new("sends")
    await engine.start("sends", text(shop), task_id=task_id, owner=new("owner"))
    await part_of(engine, task_id)
    await engine.decide(task_id, approved=True, approver="grace")
    assert (await settled(engine, task_id)).status is Status.COMPLETED
    return task_id


async def test_nothing_of_an_ended_task_stays(
    engine: TemporalEngine, purge: Purge, store: Store, values: Folder
) -> None:
    """
    Histories, journals, and receipts of the task and its part; a dry run says so before and deletes nothing.
    """
    before = aged(values)
    task_id = await bought(engine)
    part = f"{task_id}/1.1"
    made = aged(values) - before

    dry = await purged(purge, task_id, dry=True)
    assert (await engine.look(task_id)).status is Status.COMPLETED
    assert {file for file in made if file.exists()} == made
    done = await purged(purge, task_id)

    assert {id: one.deleted for id, one in done.items()} == {id: one.deleted for id, one in dry.items()}
    assert done[part].deleted == {"runs": 1, "receipts": 1, "values": 1}
    assert done[task_id].deleted == {"runs": 1, "values": 1}
    assert [one.left for one in done.values()] == [(), ()]
    assert store.of_task(part) == []
    assert {file for file in made if file.exists()} == set()
    assert await gone(engine, task_id)
    assert await gone(engine, part)


async def reset(engine: TemporalEngine, task_id: str) -> None:
    """Reset an ended task to its beginning, as `temporal workflow reset` does, and terminate its new run."""
    client = engine.client
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=task_id),
            reason="to try again",
            workflow_task_finish_event_id=4,
            request_id=task_id,
        )
    )
    await client.get_workflow_handle(task_id).terminate()
    query = f"WorkflowId = '{task_id}' AND ExecutionStatus != 'Running'"
    while (await client.count_workflows(query)).count < 2:  # visibility lags a little
        await a_moment()


async def test_the_run_that_was_reset_goes_too(engine: TemporalEngine, purge: Purge) -> None:
    """
    It holds what was said, and no run of the task names it.
    """
    task_id = new("buys")
    await engine.start("buys", Content.from_data({"shop": "Ada", "cents": 5}), task_id=task_id)
    await settled(engine, task_id)
    await reset(engine, task_id)

    [*_, done] = (await purged(purge, task_id)).values()

    assert (done.task_id, done.deleted["runs"]) == (task_id, 2)


async def test_a_task_whose_id_differs_in_upper_case_keeps_its_parts(
    engine: TemporalEngine, purge: Purge, store: Store
) -> None:
    """
    A server on SQLite lists the parts of both: those of the other one stay, with their receipts.
    """
    mine = await bought(engine)
    other = await bought(engine, "Bob", mine.replace("sends", "Sends"))

    done = await purged(purge, mine)

    assert set(done) == {mine, f"{mine}/1.1"}
    assert (await engine.look(f"{other}/1.1")).status is Status.COMPLETED
    assert len(store.of_task(f"{other}/1.1")) == 1


@pytest.mark.parametrize("ended", [True, False])
async def test_the_fork_of_a_part_stays(engine: TemporalEngine, purge: Purge, ended: bool) -> None:
    """
    It is a task of its own, whose id begins as those of the parts do; an open one does not keep the purge waiting.
    """
    task_id = await bought(engine)
    part = f"{task_id}/1.1"
    fork = (await engine.fork(part, at=2)).task_id
    await settled(engine, fork)
    if ended:
        await engine.cancel(fork)
    while fork not in {one.task_id for one in await engine.offspring(part)}:
        await a_moment()  # the index lags behind

    done = await purged(purge, task_id)

    assert {id: one.gone for id, one in done.items()} == {task_id: True, part: True}
    [left] = [one for one in done[part].left if one.what.startswith("task")]
    assert (left.what, left.why.partition(",")[0]) == (f"task {fork}", "it was forked from entry 2")
    assert (await engine.look(fork)).status is (Status.CANCELED if ended else Status.INPUT_REQUIRED)
    if not ended:
        await engine.cancel(fork)


async def test_an_open_task_is_refused(engine: TemporalEngine, purge: Purge) -> None:
    """
    The task, and an ended part of an open task, stay whole; the way out is named.
    """
    task_id = new("sends")
    await engine.start("sends", text("Ada"), task_id=task_id)
    part = await part_of(engine, task_id)

    done = await purged(purge, task_id, part)

    assert not any(one.gone or one.deleted for one in done.values())
    assert "refold cancel" in done[task_id].left[0].why
    assert (await engine.look(task_id)).status is Status.INPUT_REQUIRED
    await engine.cancel(task_id)
    with pytest.raises(TaskNotFound):
        await purged(purge, "none")


async def test_a_part_of_a_task_that_failed_is_purged_with_it(engine: TemporalEngine, purge: Purge) -> None:
    """
    Without the part, a recovery of the task would begin it anew and repeat its effects.
    """
    task_id = new("sends")
    await engine.start("sends", text("Ada"), task_id=task_id)
    part = await part_of(engine, task_id)
    await engine.cancel(task_id)
    await views.closed(engine.connection, task_id)

    [stays] = (await purged(purge, part)).values()

    assert not stays.gone
    assert stays.left[0].why.startswith(f"it is a part of {task_id!r}, which did not complete: its recovery")
    assert all(one.gone for one in (await purged(purge, part, task_id)).values())


async def test_a_task_that_recovers_another_is_purged_with_that_one(engine: TemporalEngine, purge: Purge) -> None:
    """
    Until then, whoever recovers the failed task again hears of it.
    """
    task_id = new("sends")
    await engine.start("sends", text("Ada"), task_id=task_id)
    await part_of(engine, task_id)
    await engine.cancel(task_id)
    await settled(engine, task_id)
    recovered = (await engine.recover(task_id)).task_id
    await engine.cancel(recovered)
    await views.closed(engine.connection, recovered)

    [stays] = (await purged(purge, recovered)).values()

    assert not stays.gone
    assert stays.left[0].why.startswith(f"it goes on for {task_id!r}, which could be recovered once more")
    assert all(one.gone for one in (await purged(purge, recovered, task_id)).values())
    assert await gone(engine, task_id)
    assert await gone(engine, recovered)


async def test_a_task_whose_id_is_used_again_can_be_recovered(engine: TemporalEngine, purge: Purge) -> None:
    """
    What recovered the earlier task of that id is no recovery of the new one, and can be purged without it. A reset
    makes no new task.
    """
    task_id = new("buys")
    recovered = [await canceled_and_recovered(engine, task_id)]
    await purged(purge, task_id)
    await gone(engine, task_id)
    recovered.append(await canceled_and_recovered(engine, task_id))

    assert recovered == [f"{task_id}.r1", f"{task_id}.r2"]
    with pytest.raises(InputRejected, match=f"'{task_id}.r2'"):
        await engine.recover(task_id)
    await reset(engine, task_id)
    with pytest.raises(InputRejected, match=f"'{task_id}.r2'"):
        await engine.recover(task_id)
    for one in recovered:
        await engine.cancel(one)
        await views.closed(engine.connection, one)
    assert [one.gone for id in recovered for one in (await purged(purge, id)).values()] == [True, False]


async def canceled_and_recovered(engine: TemporalEngine, task_id: str) -> str:
    """The task that recovers a new task of this id."""
    await engine.start("buys", Content.from_data({"shop": "Ada", "cents": 5}), task_id=task_id)
    await settled(engine, task_id)
    await engine.cancel(task_id)
    return (await engine.recover(task_id)).task_id


class Lagging(Interceptor):
    """A server's index that does not list some workflows yet."""

    def __init__(self, *unlisted: str) -> None:
        self.without = "".join(f" AND WorkflowId != '{id}'" for id in unlisted)

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        without = self.without

        class Outbound(OutboundInterceptor):
            def list_workflows(self, input: ListWorkflowsInput) -> WorkflowExecutionAsyncIterator:
                return super().list_workflows(replace(input, query=f"({input.query}){without}"))

        return Outbound(next)


class Asked:
    """Receipts that are not there.

    Attributes:
        kept: Why those of each task were to stay.
    """

    place = "nowhere"

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def purge(self, task_id: str, *, kept: str, dry: bool) -> tuple[dict[str, int], Sequence[tuple[str, str]]]:
        self.kept[task_id] = kept
        return {}, ()


def lagging(engine: TemporalEngine, receipts: Asked, *unlisted: str) -> Purge:
    """A purge at a server whose index does not list these workflows yet."""
    config: Any = {**engine.client.config(), "interceptors": [Lagging(*unlisted)], "plugins": []}
    return TemporalEngine(Client(**config), QUEUE, patience=PATIENT).purge(receipts)


async def test_receipts_stay_for_a_recovery_that_the_index_does_not_list_yet(engine: TemporalEngine) -> None:
    """
    It was started just now, and would perform their effects a second time.
    """
    task_id, receipts = new("buys"), Asked()
    recovered = await canceled_and_recovered(engine, task_id)
    await engine.cancel(recovered)
    await views.closed(engine.connection, recovered)
    last = (await engine.recover(recovered)).task_id

    done = await purged(lagging(engine, receipts, recovered, last), task_id, recovered, dry=True)

    why = f"task {last!r} was recovered from this one and goes on with its effects"
    assert (receipts.kept[task_id], receipts.kept[recovered]) == (why, why)
    assert [left.what for left in done[recovered].left] == [f"task {last}"]
    await engine.cancel(last)


async def test_a_part_is_recovered_though_the_index_does_not_list_it_yet(engine: TemporalEngine) -> None:
    """
    The open recovery of a part keeps the whole task.
    """
    task_id = new("sends")
    await engine.start("sends", text("Ada"), task_id=task_id)
    part = await part_of(engine, task_id)
    await engine.cancel(task_id)
    await views.closed(engine.connection, task_id)
    recovered = (await engine.recover(part)).task_id

    [stays] = (await purged(lagging(engine, Asked(), recovered), task_id, dry=True)).values()

    assert [left.why.partition(";")[0] for left in stays.left] == [f"its part {recovered!r} is open"]
    await engine.cancel(recovered)


async def test_a_value_of_two_tasks_stays_until_both_are_gone(
    engine: TemporalEngine, purge: Purge, values: Folder
) -> None:
    """
    Equal values are one file: it stays for the other task, which the report names, and goes with that one.
    """
    before = aged(values)
    one, other = new("books"), new("books")
    for task_id in (one, other):
        await engine.start("books", text(f"none {LONG}"), task_id=task_id)
        await settled(engine, task_id)
    shared = aged(values) - before

    [first] = (await purged(purge, one)).values()
    assert [(left.what.split()[0], left.why) for left in first.left] == [
        ("value", f"an equal value belongs to {other!r}")
    ]
    assert (await engine.record(other)).messages[0].text == f"none {LONG}"
    aged(values)
    assert await gone(engine, one)
    [second] = (await purged(purge, other)).values()
    assert second.left == ()
    assert {file for file in shared if file.exists()} == set()


async def test_a_value_that_was_just_written_makes_the_purge_wait(
    engine: TemporalEngine, purge: Purge, values: Folder
) -> None:
    """
    Nothing of the task goes before its values can; a minute later the same call deletes it.
    """
    task_id = new("books")
    await engine.start("books", text(f"none {uuid4()} {LONG}"), task_id=task_id)
    await settled(engine, task_id)

    [waits] = (await purged(purge, task_id)).values()
    assert not waits.gone
    assert "purge again in a minute" in waits.left[0].why
    assert (await engine.look(task_id)).status is Status.COMPLETED
    aged(values)
    [done] = (await purged(purge, task_id)).values()
    assert done.gone


async def test_a_host_whose_clock_is_ahead_deletes_no_value_that_was_just_written(
    engine: TemporalEngine, purge: Purge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    How old a value is, is a matter between its file and the storage's clock.
    """
    task_id = new("books")
    await engine.start("books", text(f"none {uuid4()} {LONG}"), task_id=task_id)
    await settled(engine, task_id)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 7200)

    [waits] = (await purged(purge, task_id)).values()

    assert not waits.gone
    assert "purge again in a minute" in waits.left[0].why


async def test_the_verb_says_what_it_would_do_and_does_it(
    engine: TemporalEngine, store: Store, values: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Without --yes nothing is deleted, and exit 0; a task that stays exits 1.
    """

    async def connect(_: object) -> TemporalEngine:
        return engine

    task_id = new("books")
    await engine.start("books", text("none"), task_id=task_id, owner=task_id)
    await settled(engine, task_id)
    while await engine.purge().owned(task_id, None) != [task_id]:
        await a_moment()  # the index lags behind
    call = Call(Output(json=False), connect=connect)

    assert await records.purge(call, owner=task_id) == 0
    dry = capsys.readouterr()
    assert dry.out.endswith(f"\n{task_id}  would delete: 1 run, 1 value\n")
    assert dry.err == "nothing was deleted; --yes deletes\n"
    assert await records.purge(call, [task_id], yes=True) == 0
    assert capsys.readouterr().out.endswith(f"{task_id}  deleted: 1 run, 1 value\n")
    open_ = new("sends")
    await engine.start("sends", text("Ada"), task_id=open_)
    assert await records.purge(call, [open_]) == 1
    assert capsys.readouterr().err == "nothing was deleted\n"
    assert await records.purge(call, [open_], yes=True) == 1
    assert f"{open_}  stays\n  left: task {open_} in namespace 'default'" in capsys.readouterr().out
    await engine.cancel(open_)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("made", [None, True, False], ids=["off", "new", "empty"])
async def test_a_purge_with_another_storage_deletes_nothing(
    engine: TemporalEngine, store: Store, tmp_path: Path, made: bool | None, long: bool
) -> None:
    """
    Without the histories nobody could tell any more which of the stored values belong to the task.
    """
    task_id = new("books")
    await engine.start("books", text(f"none {uuid4()} {LONG if long else ''}"), task_id=task_id)
    await settled(engine, task_id)
    elsewhere: Storage = Off() if made is None else Folder(tmp_path / "new" if made else tmp_path, make=made)
    config: Any = {**engine.client.config(), "data_converter": data_converter(elsewhere), "plugins": []}
    other = TemporalEngine(Client(**config), QUEUE, patience=PATIENT)

    [stays] = (await purged(other.purge(PurgedReceipts(store, "default")), task_id)).values()

    assert not stays.gone
    assert "set REFOLD_STORAGE as it is for the workers" in stays.left[0].why
    assert [entry.seq async for entry in engine.journal(task_id)] == [1]


async def test_an_interrupted_purge_is_repeated(
    engine: TemporalEngine, purge: Purge, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whichever deletion it does not come to, the next purge finds what is left, and nothing stays.
    """
    before = aged(values)
    task_id = new("books")
    await engine.start("books", text(f"none {uuid4()} {LONG}"), task_id=task_id)
    await settled(engine, task_id)
    made = aged(values) - before
    remove, count = Folder.remove, 0

    async def interrupted(self: Folder, key: str, *, unused_since: float | None) -> str:
        nonlocal count
        count += 1
        if count in (2, 4):
            raise KeyboardInterrupt
        return await remove(self, key, unused_since=unused_since)

    monkeypatch.setattr(Folder, "remove", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            await purged(purge, task_id)
    [done] = (await purged(purge, task_id)).values()

    assert (done.gone, done.left) == (True, ())
    assert {file for file in made if file.exists()} == set()


async def test_a_receipt_with_a_business_key_stays(engine: TemporalEngine, purge: Purge, store: Store) -> None:
    """
    Without it, another task that books the order would book it twice.
    """
    one, other, order = new("books"), new("books"), new("order")
    await engine.start("books", text(order), task_id=one)
    await settled(engine, one)

    [done] = (await purged(purge, one)).values()
    await engine.start("books", text(order), task_id=other)

    assert [(left.what.split(" (")[0], left.where) for left in done.left] == [("receipt of book", store.place)]
    assert (await settled(engine, other)).status is Status.COMPLETED
    assert skills.FIRED.count(f"book {order}") == 1


async def test_an_owners_tasks_by_age(engine: TemporalEngine, purge: Purge) -> None:
    """
    Open ones are found without an age, and refused; an age finds those that ended before it.
    """
    owner = new("owner")
    ended, open_ = new("books"), new("sends")
    await engine.start("books", text("none"), task_id=ended, owner=owner)
    await settled(engine, ended)
    await engine.start("sends", text("Ada"), task_id=open_, owner=owner)
    await part_of(engine, open_)
    while set(found := await purge.owned(owner, None)) != {ended, open_}:
        await a_moment()  # the index lags behind

    assert await purge.owned(owner, datetime(2020, 1, 1, tzinfo=UTC)) == []
    while await purge.owned(owner, datetime.now(UTC)) != [ended]:
        await a_moment()
    done = await purged(purge, *found)
    assert {id: one.gone for id, one in done.items()} == {ended: True, open_: False}
    assert await gone(engine, ended)
    late = [one.task_id async for one in purge.run(found, dry=False, listed=True)]  # as a lagging index lists them
    assert late == [open_]
    await engine.cancel(open_)


async def test_a_task_that_was_reset_is_as_old_as_its_last_run(engine: TemporalEngine, purge: Purge) -> None:
    """
    An age does not find it by the run before, though the index still lists that run.
    """
    owner, task_id = new("owner"), new("buys")
    await engine.start("buys", Content.from_data({"shop": "Ada", "cents": 5}), task_id=task_id, owner=owner)
    await settled(engine, task_id)
    await engine.connection.client.get_workflow_handle(task_id).terminate()
    between = await closed_at(engine, task_id) + timedelta(microseconds=1)
    await reset(engine, task_id)
    last = await closed_at(engine, task_id)

    assert between < last
    found = await purge.owned(owner, between)
    assert set(found) == {task_id}
    assert [one async for one in purge.run(found, dry=True, listed=True, ended_before=between)] == []
    assert [one async for one in purge.run(found, dry=True, listed=True, ended_before=last)] == []
    late = [one async for one in purge.run(found, dry=True, listed=True, ended_before=last + timedelta(microseconds=1))]
    assert task_id in {one.task_id for one in late}


async def closed_at(engine: TemporalEngine, task_id: str) -> datetime:
    """When a task's last run ended."""
    ended = (await engine.connection.describe(task_id)).close_time
    assert ended is not None
    return ended


async def test_webhooks_go_with_their_task(engine: TemporalEngine, purge: Purge) -> None:
    """
    With each run of one that was set again: it has the receiver's secrets. One that still delivers, to the task or to a
    part of it, keeps the whole task: the updates are read from it.
    """
    task_id = await bought(engine)
    over, open_ = f"webhook/{task_id}/over", f"webhook/{task_id}%2F1.1/open"
    for id in (over, over, open_):
        await engine.client.start_workflow("refold.webhook", id=id, task_queue="nobody")
        if id == over:
            await engine.client.get_workflow_handle(over).terminate()

    async def webhooks() -> list[str]:
        listed = engine.client.list_workflows(f"WorkflowId STARTS_WITH 'webhook/{task_id}'")
        return [one.id async for one in listed]

    while len(await webhooks()) < 3:
        await a_moment()  # the index lags behind

    [stays] = (await purged(purge, task_id)).values()
    assert (stays.gone, stays.deleted) == (False, {})
    assert [(left.what, left.why.split(";")[0]) for left in stays.left] == [
        (f"task {task_id}", f"its webhook {open_!r} still delivers updates")
    ]
    await engine.client.get_workflow_handle(open_).terminate()
    done = await purged(purge, task_id)

    assert [one.deleted["webhooks"] for one in done.values()] == [1, 1]
    async with asyncio.timeout(30):
        while await webhooks():
            await a_moment()  # the server deletes in its own time


async def test_a_reference_that_a_user_writes_deletes_nothing(
    engine: TemporalEngine, purge: Purge, values: Folder
) -> None:
    """
    A message that looks like a reference to another task's journal is only a text.
    """
    before = aged(values)
    victim, task_id = new("books"), new("books")
    await engine.start("books", text("none"), task_id=victim)
    await settled(engine, victim)
    [journal] = aged(values) - before
    said = Content.from_data({"sha256": journal.name, "size": 5, "text": "none"})
    await engine.start("books", said, task_id=task_id)
    await settled(engine, task_id)

    [done] = (await purged(purge, task_id)).values()

    assert done.gone
    assert journal.exists()
    assert [entry.seq async for entry in engine.journal(victim)] == [1]


async def test_a_server_that_lets_nobody_delete_keeps_all(
    engine: TemporalEngine, purge: Purge, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    That is found out before anything is deleted.
    """
    task_id = new("books")
    await engine.start("books", text("none"), task_id=task_id)
    await settled(engine, task_id)
    files = aged(values)

    async def denied(*_: object, **__: object) -> None:
        raise RPCError("not you", RPCStatusCode.PERMISSION_DENIED, b"")

    monkeypatch.setattr(type(engine.client.workflow_service), "delete_workflow_execution", denied)
    [done] = (await purged(purge, task_id)).values()

    assert not done.gone
    assert "no permission to delete histories (not you)" in done.left[0].why
    assert all(file.exists() for file in files)
