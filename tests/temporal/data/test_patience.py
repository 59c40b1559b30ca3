"""How long a worker waits for a key: as long for each input, however long it has been without the key."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import StorageDriverStoreContext, StorageDriverWorkflowInfo

from refold.temporal.data import absent
from refold.temporal.data.absent import PATIENCE_S, SURE, reading_inputs
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.encryption import Encryption

OTHER = Encryption({"other": b"o" * 32})


async def test_each_input_waits_for_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A worker that refused one for want of a key gives the next one, in the same run or in another, as much time: other
    workers may have the key.
    """
    reader = reading_inputs(data_converter(Folder(tmp_path), Encryption({"here": b"h" * 32})), ["counts"])
    sent = await OTHER.encode([Payload(data=b'"one"'), Payload(data=b'"two"')])
    now = 0.0
    monkeypatch.setattr(absent, "time", SimpleNamespace(monotonic=lambda: now))

    async def is_refused(number: int, run_id: str) -> bool:
        target = StorageDriverWorkflowInfo(namespace="default", type="counts", run_id=run_id)
        of_run = reader._with_store_context(StorageDriverStoreContext(target=target))
        [read] = await of_run._decode_payload_sequence([sent[number]])
        return SURE in read.metadata

    assert not await is_refused(0, "a")
    now = PATIENCE_S
    assert await is_refused(0, "a")
    assert not await is_refused(1, "a")
    assert not await is_refused(0, "b")
    now = 2 * PATIENCE_S
    assert await is_refused(1, "a")
    assert await is_refused(0, "b")
