"""How values travel: whole, readable, and no larger in history than they must be."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, Worker

from refold.core import retry_policy
from refold.effects.attempt import as_application_error
from refold.effects.failures.building import transient
from refold.engine import PayloadTooLarge, StorageError
from refold.temporal.data.failures import FAILURE_CAUSES
from refold.temporal.data.inputs import Unread, for_tasks
from refold.temporal.data.payloads import (
    LIMIT_BYTES,
    THRESHOLD_BYTES,
    Stored,
    data_converter,
    load,
)
from refold.temporal.data.storage import Folder, Off, Storage, StorageUnusable, ValueCorrupt, ValueMissing, key_of
from refold.temporal.dev import DevServer
from tests.temporal.data.travel import Final, Line, Order, Segment, Travel, make, measure

TOO_LARGE = "x" * 3_000_000
LONG = "x" * 100_000
SEGMENT = Segment(lines=[Line(seq=1, text="hello"), Line(seq=2, text="Ada")])
FINAL = Final(text="Dear Ada", journal=Stored[Segment](value=SEGMENT))


class Flip(PayloadCodec):
    """Encryption, as far as a test is concerned: what is written cannot be read without it."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"binary/flip"}, data=_flipped(payload.SerializeToString()))
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload.FromString(_flipped(payload.data)) for payload in payloads]


def _flipped(data: bytes) -> bytes:
    return bytes(255 - byte for byte in data)


async def test_a_stored_part_leaves_its_hash(folder: Folder) -> None:
    """
    What is written holds the readable rest and a reference; the part is read on demand.
    """
    converter = data_converter(folder)
    [payload] = await converter.encode([FINAL])
    [received] = await converter.decode([payload], [Final])

    assert payload.data.startswith(b'{"text":"Dear Ada","journal":{"sha256":"')
    assert list(payload.metadata) == ["encoding"]
    assert received.text == "Dear Ada"
    assert received.journal.value is None
    assert received.journal.size == len(SEGMENT.model_dump_json())
    assert await load(received.journal, converter) == SEGMENT


async def test_the_same_value_has_the_same_reference(folder: Folder) -> None:
    """
    Replay writes what the first run wrote.
    """
    converter = data_converter(folder)

    assert await converter.encode([FINAL]) == await converter.encode([FINAL.model_copy(deep=True)])


async def test_without_storage_a_part_travels_along() -> None:
    """
    The rest stays readable, and whoever receives it has the value at once, typed or not.
    """
    converter = data_converter(Off())
    [payload] = await converter.encode([FINAL])

    assert payload.data.startswith(b'{"text":"Dear Ada","journal":{"sha256":"')
    assert await converter.decode([payload], [Final]) == [FINAL]
    assert await converter.decode([payload]) == [FINAL.model_dump(mode="json")]


async def test_without_storage_a_part_that_does_not_fit_is_left_out() -> None:
    """
    A long journal does not keep a task from ending.
    """
    converter = data_converter(Off())
    long = Stored[Segment](value=Segment(lines=[Line(seq=1, text=TOO_LARGE)]))
    [received] = await converter.decode(await converter.encode([Final(text="Dear Ada", journal=long)]), [Final])

    assert received.text == "Dear Ada"
    with pytest.raises(ValueMissing, match="REFOLD_STORAGE=off"):
        await load(received.journal, converter)


async def test_while_the_folder_is_away_a_part_travels_along(tmp_path: Path) -> None:
    """
    A task ends, and its journal is in history instead.
    """
    converter = data_converter(Folder(tmp_path / "unmounted"))

    assert await converter.decode(await converter.encode([FINAL]), [Final]) == [FINAL]


async def test_parts_may_sit_anywhere_in_a_value(folder: Folder) -> None:
    """
    A list of journals is a list of references.
    """
    converter = data_converter(folder)
    order = Order(earlier=tuple(Stored[Segment](value=Segment(lines=[Line(seq=n, text="")])) for n in range(3)))
    [received] = await converter.decode(await converter.encode([order]), [Order])

    assert [(await load(part, converter)).lines[0].seq for part in received.earlier] == [0, 1, 2]


async def test_a_part_may_hold_a_part(folder: Folder) -> None:
    """
    With storage each is read by itself; without, both travel along.
    """
    nested = Stored[Final](value=FINAL)
    [received] = await data_converter(folder).decode(await data_converter(folder).encode([nested]), [Stored[Final]])
    outer = await load(received, data_converter(folder))

    assert await load(outer.journal, data_converter(folder)) == SEGMENT
    assert await data_converter(Off()).decode(await data_converter(Off()).encode([nested]), [Stored[Final]]) == [nested]


@pytest.mark.parametrize(("wide", "deep"), [(40, 4), (1, 400)], ids=["wide", "deep"])
def test_parts_that_anybody_can_send_stay_small(wide: int, deep: int) -> None:
    """
    Parts that refer to parts, each many times, would make gigabytes of a few kilobytes: a task refuses them as an input
    that cannot be read.
    """
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
    for _ in range(deep):
        key, raw = key_of(payload.data), payload.data
        payload.metadata[f"refold-part-{key}"] = raw
        payload.data = to_json([{"sha256": key, "size": len(raw)}] * wide)
    [read] = for_tasks(lambda: data_converter(Off()).payload_converter)().from_payloads([payload])

    assert isinstance(read, Unread)
    assert "parts that refer to each other" in read.why


def test_a_reference_in_a_text_is_only_text() -> None:
    """
    What a model writes is never taken for a part.
    """
    converter = data_converter(Off()).payload_converter
    reference = to_json({"sha256": "0" * 64, "size": 1}).decode()
    payloads = converter.to_payloads([Final(text=reference, journal=FINAL.journal)])

    assert converter.from_payloads(payloads, [Final])[0].text == reference


def test_outside_the_converter_the_value_is_written_in_place() -> None:
    """
    A final task reads the same from `model_dump_json`.
    """
    assert Final.model_validate_json(FINAL.model_dump_json()) == FINAL


async def test_a_codec_sees_stored_parts_too(folder: Folder) -> None:
    """
    With encryption nothing readable is left, in history or in storage.
    """
    converter = data_converter(folder, Flip())
    [payload] = await converter.encode([FINAL])
    [received] = await converter.decode([payload], [Final])
    written = b"".join(path.read_bytes() for path in folder.path.glob("*/*"))

    assert b"Ada" not in payload.data
    assert b"Ada" not in written
    assert await load(received.journal, converter) == SEGMENT


async def test_a_stored_part_takes_a_fraction_of_its_json(folder: Folder) -> None:
    """
    A journal repeats itself, and history has most of it already. Parts that were stored as they are can be read, too.
    """
    converter = data_converter(folder)
    segment = Segment(lines=SEGMENT.lines * 20)
    [payload] = await converter.encode([Final(text="Dear Ada", journal=Stored[Segment](value=segment))])
    [file] = [path for path in folder.path.glob("*/*") if path.is_file()]
    raw = zlib.decompress(file.read_bytes())
    [received] = await converter.decode([payload], [Final])

    assert file.stat().st_size < len(raw) / 5
    assert key_of(raw) == file.name
    file.write_bytes(raw)
    assert await load(received.journal, converter) == segment
    file.write_bytes(raw[:-1])
    with pytest.raises(ValueCorrupt, match=f"the value {file.name} .* is damaged"):
        await load(received.journal, converter)


@pytest.mark.parametrize("size", [0, THRESHOLD_BYTES - 100, THRESHOLD_BYTES, 5_000_000])
async def test_values_of_all_sizes_come_back(size: int, folder: Folder) -> None:
    """
    What is large is stored, what is small is not, and nobody can tell from the value.
    """
    converter = data_converter(folder)
    payloads = await converter.encode(["x" * size])

    assert await converter.decode(payloads, [str]) == ["x" * size]
    assert any(folder.path.iterdir()) is (size >= THRESHOLD_BYTES)


def test_without_storage_the_limit_counts_all_arguments() -> None:
    """
    Two halves that do not fit together are refused, with the sizes and the way out.
    """
    half = "x" * (LIMIT_BYTES // 2)

    with pytest.raises(PayloadTooLarge, match=r"2,000,0\d\d bytes .* takes 2,000,000, .* set REFOLD_STORAGE"):
        data_converter(Off()).payload_converter.to_payloads([half, half])


async def test_a_stored_value_needs_storage_to_be_read(folder: Folder) -> None:
    """
    A process without storage says so instead of handing out a reference.
    """
    payloads = await data_converter(folder).encode([LONG])

    with pytest.raises(ValueMissing, match="REFOLD_STORAGE=off in this process"):
        await data_converter(Off()).decode(payloads, [str])


@pytest.mark.parametrize("codec", [None, Flip()], ids=["plain", "encrypted"])
async def test_a_reference_to_no_hash_reads_no_file(tmp_path: Path, codec: PayloadCodec | None) -> None:
    """
    Anybody can start a task with one, and its error would tell the hash of a file beside the folder.
    """
    outside = tmp_path / "outside"
    outside.write_text('"secret"')
    (tmp_path / "values").mkdir()
    converter = data_converter(Folder(tmp_path / "values"), codec)
    for path in (str(outside), "../../outside"):
        with pytest.raises(ValueMissing, match="outside is not in the folder"):
            await load(Stored[str](sha256=path, size=8), converter)


async def test_another_converter_cannot_load() -> None:
    """
    A client without refold's converter is told so.
    """
    with pytest.raises(TypeError, match="data_converter"):
        await load(Stored[Segment](sha256="0" * 64, size=1), DataConverter.default)


# --- on Temporal


def _worker(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Travel], activities=[make, measure])


async def _connect(server: DevServer, storage: Storage) -> Client:
    return await Client.connect(server.address, data_converter=data_converter(storage))


async def _start(client: Client, queue: str, how: str = "wait") -> WorkflowHandle[Travel, Final]:
    return await client.start_workflow(Travel.run, Order(how=how), id=f"travel-{uuid.uuid4()}", task_queue=queue)


async def _events(handle: WorkflowHandle[Any, Any], kind: EventType.ValueType) -> list[HistoryEvent]:
    return [event async for event in handle.fetch_history_events() if event.event_type == kind]


@pytest.fixture
def queue() -> str:
    """A task queue of this test's own."""
    return f"travel-{uuid.uuid4()}"


async def test_a_result_is_readable_and_its_journal_stored(client: Client, queue: str, values: Folder) -> None:
    """
    History holds the final task in the clear and a reference to its journal; replay writes the journal again.
    """
    async with _worker(client, queue):
        handle = await _start(client, queue)
        await handle.signal(Travel.say, "hello" * 100)
        await handle.signal(Travel.finish)
        final = await handle.result()
    [completed] = await _events(handle, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
    [result] = completed.workflow_execution_completed_event_attributes.result.payloads
    journal = await load(final.journal, client.data_converter)

    assert result.data.startswith(b'{"text":"Dear Ada","journal":{"sha256":"')
    assert result.ByteSize() < 200
    assert [line.text for line in journal.lines] == ["hello" * 100]

    assert final.journal.sha256 is not None
    stored = values.path / final.journal.sha256[:2] / final.journal.sha256
    stored.unlink()
    await Replayer(workflows=[Travel], data_converter=client.data_converter).replay_workflow(
        await handle.fetch_history()
    )

    assert await load(final.journal, client.data_converter) == journal


async def test_a_failure_says_how_the_task_ended(client: Client, queue: str) -> None:
    """
    The details of a failure are as readable as a result, and as small.
    """
    async with _worker(client, queue):
        handle = await _start(client, queue, "fail")
        await handle.signal(Travel.say, "hello")
        await handle.signal(Travel.finish)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    final = Final.model_validate(cause.details[0])

    assert final.text == "Dear Ada"
    assert (await load(final.journal, client.data_converter)).lines == [Line(seq=0, text="hello")]


async def test_a_journal_outlives_its_run(client: Client, queue: str) -> None:
    """
    The next run of a chain carries a reference, at no event of its own, and hands it on.
    """
    async with _worker(client, queue):
        handle = await _start(client, queue, "again")
        await handle.signal(Travel.say, LONG)
        await handle.signal(Travel.finish)
        next_run = client.get_workflow_handle(handle.id, result_type=Final)
        with pytest.raises(WorkflowContinuedAsNewError):
            await handle.result(follow_runs=False)
        await next_run.signal(Travel.finish)
        final = await next_run.result()
    [started] = await _events(next_run, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED)

    assert started.workflow_execution_started_event_attributes.input.payloads[0].ByteSize() < 300
    assert (await load(final.journal, client.data_converter)).lines == [Line(seq=0, text=LONG)]


async def test_large_values_go_every_way(client: Client, queue: str) -> None:
    """
    With storage 3 MB are nothing special: message, answer, activity's argument and result, query, replay.
    """
    async with _worker(client, queue):
        handle = await _start(client, queue)
        await handle.signal(Travel.say, TOO_LARGE)
        assert await handle.execute_update(Travel.tell, TOO_LARGE) == len(TOO_LARGE)
        assert await handle.execute_update(Travel.ask, 3_000_000) == 3_000_000
        assert await handle.execute_update(Travel.give, 3_000_000) == 3_000_000
        assert [len(text) for text in await handle.query(Travel.everything)] == [3_000_000] * 3
        await handle.signal(Travel.finish)
        await handle.result()
    history = await handle.fetch_history()

    assert sum(event.ByteSize() for event in history.events) < 20_000
    await Replayer(workflows=[Travel], data_converter=client.data_converter).replay_workflow(history)


async def test_a_querys_answer_is_not_kept(server: DevServer, queue: str, folder: Folder) -> None:
    """
    Asking again and again leaves nothing behind, as long as the answer fits a message.
    """
    client = await _connect(server, folder)
    async with _worker(client, queue):
        handle = await _start(client, queue)
        await handle.signal(Travel.say, LONG)
        before = sorted(folder.path.glob("*/*"))
        assert await handle.query(Travel.everything) == [LONG]
        await handle.terminate()

    assert sorted(folder.path.glob("*/*")) == before


@pytest.mark.parametrize(
    ("storage", "error"),
    [
        pytest.param(Off(), PayloadTooLarge, id="off"),
        pytest.param(Folder(Path("/nowhere/values")), StorageUnusable, id="folder missing"),
    ],
)
async def test_a_message_that_cannot_be_kept_is_refused(
    storage: Storage, error: type[StorageError], server: DevServer, client: Client, queue: str
) -> None:
    """
    The sender is told what to do, by start, signal and update alike; the task goes on and answers queries.
    """
    sender = await _connect(server, storage)
    async with _worker(client, queue):
        task = await _start(client, queue)
        handle = sender.get_workflow_handle(task.id)
        with pytest.raises(error, match="REFOLD_STORAGE"):
            await handle.signal(Travel.say, TOO_LARGE)
        with pytest.raises(error, match="REFOLD_STORAGE"):
            await handle.execute_update(Travel.tell, TOO_LARGE)
        with pytest.raises(error, match="REFOLD_STORAGE"):
            await sender.start_workflow(Travel.run, Order(how=TOO_LARGE), id=queue, task_queue=queue)
        await handle.signal(Travel.say, "small")

        assert await handle.query(Travel.sizes) == [len("small")]
        await handle.terminate()


async def test_a_worker_without_storage_refuses_what_is_too_large(server: DevServer, queue: str) -> None:
    """
    An activity runs once and fails for good; a command is an error in the workflow, which goes on.
    """
    client = await _connect(server, Off())
    async with _worker(client, queue):
        handle = await _start(client, queue)
        for update in (Travel.ask, Travel.give):
            with pytest.raises(WorkflowUpdateFailedError) as caught:
                await handle.execute_update(update, 3_000_000)
            assert isinstance(caught.value.cause, ApplicationError)
            assert caught.value.cause.type == "PayloadTooLarge"
            assert "set REFOLD_STORAGE" in caught.value.cause.message
        assert await handle.execute_update(Travel.ask, LIMIT_BYTES - 1000) == LIMIT_BYTES - 1000
        assert await handle.execute_update(Travel.tell, "x" * (LIMIT_BYTES - 1000)) == LIMIT_BYTES - 1000
        with pytest.raises(WorkflowQueryFailedError, match="set REFOLD_STORAGE"):
            await handle.query(Travel.everything)
        assert len(await handle.query(Travel.sizes)) == 2
        await handle.signal(Travel.finish)

        assert (await handle.result()).text == "Dear Ada"
    failed = await _events(handle, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED)
    assert len(failed) == 1


async def test_a_failure_whose_details_do_not_fit_is_still_told() -> None:
    """
    The details are left out, the message says so, and the type stays.
    """
    converter = data_converter(Off())
    failure = Failure()
    await converter.encode_failure(ApplicationError("rejected", TOO_LARGE, type="Rejected"), failure)
    error = await converter.decode_failure(failure)

    assert isinstance(error, ApplicationError)
    assert error.type == "Rejected"
    assert error.details == ()
    assert error.message.startswith("rejected (its details are left out: a value of 3,000,0")


async def test_a_failure_whose_details_do_not_fit_keeps_its_kind() -> None:
    """
    Whether its effect may have taken place, and whether to try again, is no detail.
    """
    converter, sent = data_converter(Off()), Failure()
    told = transient("busy", "later", details=TOO_LARGE)
    await converter.encode_failure(as_application_error(told), sent)
    error = await converter.decode_failure(sent)

    assert isinstance(error, ApplicationError)
    read = retry_policy.Failure.model_validate(error.details[0])
    assert (read.kind, read.type, read.details) == (told.kind, "busy", None)
    assert read.message == error.message


async def test_a_failure_with_many_causes_is_cut() -> None:
    """
    The SDK cannot send a failure with a hundred causes; the newest of them travel.
    """
    error: BaseException = ApplicationError("cause 120")
    for number in reversed(range(120)):
        above = ApplicationError(f"cause {number}")
        above.__cause__ = error
        error = above
    failure = Failure()
    await data_converter(Off()).encode_failure(error, failure)

    told = []
    while failure.HasField("cause"):
        told.append(failure.message)
        failure = failure.cause
    assert [*told, failure.message] == [f"cause {number}" for number in range(FAILURE_CAUSES + 1)]
