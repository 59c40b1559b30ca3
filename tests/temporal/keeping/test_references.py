"""What a purge reads to find out which stored values are a task's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue
from temporalio.api.common.v1 import Memo, Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionContinuedAsNewEventAttributes,
    WorkflowExecutionSignaledEventAttributes,
    WorkflowExecutionStartedEventAttributes,
    WorkflowExecutionUpdateAcceptedEventAttributes,
    WorkflowPropertiesModifiedEventAttributes,
)
from temporalio.api.update.v1 import Input, Request
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec

from refold.core.authoring.define import skill_of
from refold.core.fold.apply import planned
from refold.temporal.data.codec import KEY_ID
from refold.temporal.data.payloads import LIMIT_BYTES, REFERENCE_TYPE, Stored, data_converter
from refold.temporal.data.storage import VALUE_KEY, Folder, Off
from refold.temporal.data.wire import RESULT_MEMO, EarlierRun, Segment
from refold.temporal.encryption import Encryption
from refold.temporal.keeping.references import References, references_of
from workflows.hello import Hello


@dataclass(frozen=True)
class Counting(Folder):
    """A storage that counts how often each value is read."""

    reads: Counter[str] = field(default_factory=Counter[str])

    async def get(self, key: str) -> bytes:
        self.reads[key] += 1
        return await super().get(key)


class Kept:
    """As much of a client as reads histories: those of one task, by run."""

    def __init__(self, converter: DataConverter, runs: dict[str, list[HistoryEvent]]) -> None:
        self.data_converter, self._runs = converter, runs

    def get_workflow_handle(self, _: str, *, run_id: str) -> Kept:
        return Kept(self.data_converter, {"": self._runs[run_id]})

    async def fetch_history_events(self) -> AsyncIterator[HistoryEvent]:
        for event in self._runs[""]:
            yield event


async def runs_of(
    converter: DataConverter, number: int, *, state: JsonValue = None, context: str = ""
) -> dict[str, list[HistoryEvent]]:
    """The histories of a task that has gone on in this many runs; each is told of the journals of all before it.

    Args:
        converter: It writes the values.
        number: How many runs.
        state: The author's own data, beside the journals.
        context: What each journal holds.
    """
    base = planned(skill_of(Hello), "t1", datetime(2026, 1, 1, tzinfo=UTC))
    bases = [base.model_copy(update={"seq": n, "context": context}) for n in range(number)]
    earlier = [
        EarlierRun(run_id=f"r{n}", last=n + 1, journal=Stored(value=Segment(base=base, entries=())))
        for n, base in enumerate(bases)
    ]

    async def told(runs: list[EarlierRun]) -> dict[str, Any]:
        return {"input": Payloads(payloads=await converter.encode([{"state": state, "earlier": runs}]))}

    return {
        f"r{n}": [
            HistoryEvent(
                event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
                workflow_execution_started_event_attributes=WorkflowExecutionStartedEventAttributes(
                    **await told(earlier[:n])
                ),
            ),
            HistoryEvent(
                event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
                workflow_execution_continued_as_new_event_attributes=WorkflowExecutionContinuedAsNewEventAttributes(
                    **await told(earlier[: n + 1])
                ),
            ),
        ]
        for n in range(number)
    }


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def only_file(folder: Path) -> Path:
    [found] = files(folder)
    return found


async def test_a_journal_is_read_once_however_many_runs_name_it(tmp_path: Path) -> None:
    """
    Each run of a task names the journals of all before it; a purge reads and decrypts each of them once.
    """
    storage = Counting(tmp_path)
    converter = data_converter(storage)
    runs = await runs_of(converter, 4)

    found = await references_of(cast("Client", Kept(converter, runs)), "t1", runs)

    assert len(found.own) == 4
    assert storage.reads == dict.fromkeys(found.own, 1)
    assert not found.missing


async def test_a_journal_by_a_key_that_is_not_here_keeps_its_task(tmp_path: Path) -> None:
    """
    Also where a later journal of the task can be read: else the histories would go and the earlier journal stay.
    """
    storage = Folder(tmp_path)
    converter = data_converter(storage, Encryption({"new": b"n" * 32}))
    runs = await runs_of(converter, 2)
    await runs_of(data_converter(storage, Encryption({"old": b"o" * 32})), 1)  # writes the first journal anew

    found = await references_of(cast("Client", Kept(converter, runs)), "t1", ["r1"])

    assert len(found.own) == 1
    assert "encrypted by the key 'old'" in found.locked


class Nameless(PayloadCodec):
    """A codec of a program's own, whose payloads name no key."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata={"encoding": b"own"}, data=one.SerializeToString()[::-1]) for one in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [one if _bare(one) else Payload.FromString(one.data[::-1]) for one in payloads]


def _bare(payload: Payload) -> bool:
    return payload.metadata.get("encoding") != b"own"


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        pytest.param(Encryption({"k": b"o" * 32}), Encryption({"k": b"n" * 32}), "different keys", id="key"),
        pytest.param(Nameless(), Encryption({"k": b"n" * 32}), "the encoding 'own'", id="codec"),
        pytest.param(Nameless(), None, "the encoding 'own'.* set REFOLD_CODEC", id="no codec"),
    ],
)
async def test_values_that_are_not_decrypted_keep_their_task(
    tmp_path: Path, theirs: PayloadCodec, ours: PayloadCodec | None, said: str
) -> None:
    """
    Also where no error says so: a purge that took them for plain text would delete the histories and leave the
    journals.
    """
    storage = Folder(tmp_path)
    runs = await runs_of(data_converter(storage, theirs), 2)

    found = await references_of(cast("Client", Kept(data_converter(storage, ours), runs)), "t1", runs)
    with_theirs = await references_of(cast("Client", Kept(data_converter(storage, theirs), runs)), "t1", runs)

    assert re.search(said, found.locked)
    assert not with_theirs.locked
    assert with_theirs.own == {path.name for path in files(tmp_path)}


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(Payload(metadata={"messageType": REFERENCE_TYPE}, data=b"{}"), id="reference"),
        pytest.param(Payload(metadata={"encoding": b"x", VALUE_KEY: b"../x"}, data=b"{}"), id="stored value"),
        pytest.param(Payload(metadata={"encoding": b"binary/null"}), id="nothing"),
        pytest.param(Payload(data=b"a header of the program's"), id="no encoding"),
    ],
)
async def test_what_no_codec_has_encrypted_keeps_no_task(tmp_path: Path, payload: Payload) -> None:
    """
    Nor what anybody can send who makes up a reference or the name of a stored value.
    """
    converter = data_converter(Folder(tmp_path), Encryption({"k": b"n" * 32}))
    runs = await runs_of(converter, 1)
    runs["r0"][0].workflow_execution_started_event_attributes.input.payloads.append(payload)

    found = await references_of(cast("Client", Kept(converter, runs)), "t1", runs)

    assert not found.locked
    assert len(found.own) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"encoding": b"json/plain-x"}, id="unknown"),
        pytest.param({"encoding": b""}, id="empty"),
        pytest.param({"encoding": b"encrypted, but not by the key 'k'"}, id="as an error"),
        pytest.param({"encoding": b"binary/encrypted", KEY_ID: b"nobody's"}, id="unknown key"),
        pytest.param({"encoding": b"binary/encrypted", KEY_ID: b"k"}, id="forged"),
    ],
)
async def test_what_somebody_sent_keeps_no_task(tmp_path: Path, metadata: dict[str, bytes]) -> None:
    """
    A signal or an update names any encoding or key, and stands in history as it came; no journal is in it.
    """
    converter = data_converter(Folder(tmp_path), Encryption({"k": b"n" * 32}))
    runs = await runs_of(converter, 1)
    came = Payloads(payloads=[Payload(metadata=metadata, data=b"1" * 40)])
    signal = WorkflowExecutionSignaledEventAttributes(signal_name="message", input=came)
    update = WorkflowExecutionUpdateAcceptedEventAttributes(accepted_request=Request(input=Input(args=came)))
    runs["r0"] += [
        HistoryEvent(
            event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
            workflow_execution_signaled_event_attributes=signal,
        ),
        HistoryEvent(
            event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
            workflow_execution_update_accepted_event_attributes=update,
        ),
    ]

    found = await references_of(cast("Client", Kept(converter, runs)), "t1", runs)

    assert not found.locked
    assert len(found.own) == 1


async def test_a_journal_in_a_storage_that_does_not_answer_keeps_its_task(tmp_path: Path) -> None:
    """
    Nobody can tell whose it is until the storage answers.
    """
    converter = data_converter(Folder(tmp_path))
    runs = await runs_of(converter, 1)
    journal = only_file(tmp_path)
    journal.unlink()
    journal.mkdir()

    found = await references_of(cast("Client", Kept(converter, runs)), "t1", runs)

    assert "Is a directory" in found.locked


async def test_a_damaged_journal_is_reported(tmp_path: Path) -> None:
    """
    It stays when the histories go, and is named.
    """
    converter = data_converter(Folder(tmp_path))
    runs = await runs_of(converter, 1)
    journal = only_file(tmp_path)
    journal.write_bytes(b"damaged")

    found = await references_of(cast("Client", Kept(converter, runs)), "t1", runs)

    assert "is damaged" in found.unread[journal.name]
    assert not found.missing


async def test_a_task_that_was_canceled_names_its_journal_too(tmp_path: Path) -> None:
    """
    In its memo, since the event of its end has no result. A purge with another storage finds that it lacks the journal.
    """
    workers, other = Folder(tmp_path / "workers", make=True), Folder(tmp_path / "other", make=True)
    written = await runs_of(data_converter(workers), 1)
    [result] = written["r0"][1].workflow_execution_continued_as_new_event_attributes.input.payloads
    memo = HistoryEvent(
        event_type=EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
        workflow_properties_modified_event_attributes=WorkflowPropertiesModifiedEventAttributes(
            upserted_memo=Memo(fields={RESULT_MEMO: result})
        ),
    )
    canceled = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED)
    runs = {"r0": [written["r0"][0], memo, canceled]}

    found = await references_of(cast("Client", Kept(data_converter(other), runs)), "t1", runs)

    assert found.missing == {only_file(workers.path).name}


@pytest.mark.parametrize(
    ("state", "context"),
    [
        pytest.param(None, "", id="journals alone"),
        pytest.param({"sha256": "a" * 64, "size": 3}, "", id="the author's data look like a reference"),
        pytest.param(None, "x" * LIMIT_BYTES, id="too large for history"),
    ],
)
@pytest.mark.parametrize("codec", [None, Encryption({"new": b"n" * 32})], ids=["plain", "encrypted"])
async def test_a_journal_of_workers_without_storage_is_in_no_storage(
    state: JsonValue, context: str, codec: Encryption | None
) -> None:
    """
    With `REFOLD_STORAGE=off` it goes with the history, or was not kept; a purge does not look for it.
    """
    converter = data_converter(Off(), codec)
    runs = await runs_of(converter, 2, state=state, context=context)

    found = await references_of(cast("Client", Kept(converter, runs)), "t1", runs)

    assert found == References()
