"""What says that it refers to a stored value and does not quite: an input like any other, which its task refuses."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.converter import StorageDriverStoreContext, StorageDriverWorkflowInfo

from refold.temporal.data.absent import NOW, SURE, reading_inputs
from refold.temporal.data.payloads import REFERENCE_TYPE, Stored, data_converter
from refold.temporal.data.storage import Folder, key_of
from refold.temporal.encryption import Encryption

KEY = "a" * 64
Pairs = list[tuple[str, str]]

_odd = st.sampled_from(
    ["null", "5", "true", '"zzz"', '"refold"', "[]", "{}", "NaN", "1" * 5_000, '"\\ud800"', "[" * 300]
)


def _with_more(pairs: Pairs, names: list[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON of an object of these pairs and up to two more, in any order; a name may come twice."""
    more = st.lists(st.tuples(st.sampled_from(names), values), max_size=2)
    mixed = more.flatmap(lambda others: st.permutations([*pairs, *others]))
    return mixed.map(lambda found: "{" + ",".join(f'"{name}":{value}' for name, value in found) + "}")


_claims = _with_more([("sha256", f'"{KEY}"')], ["sha256", "n", "", "__proto__"], st.one_of(_odd, st.just(f'"{KEY}"')))
_names = ["driverName", "driver_name", "claimData", "claim_data", "zzz"]
references = _claims.flatmap(
    lambda claim: _with_more([("driverName", '"refold"'), ("claimData", claim)], _names, st.one_of(_odd, _claims))
)


def reference(data: str) -> Payload:
    return Payload(metadata={"encoding": b"json/protobuf", "messageType": REFERENCE_TYPE}, data=data.encode())


async def as_input(sent: Payload, storage: Folder, codec: Encryption | None = None) -> Payload:
    """What a worker hands to a task, whose converter reads it."""
    reader = reading_inputs(data_converter(storage, codec), ["counts"])
    target = StorageDriverWorkflowInfo(namespace="default", type="counts")
    reader = reader._with_store_context(StorageDriverStoreContext(target=target))
    read = await reader._decode_reference_payload_sequence([sent])
    read = await reader._external_retrieve_payload_sequence(read)
    [payload] = await reader._decode_payload_sequence(read)
    return payload


@pytest.mark.parametrize(
    "data",
    [
        pytest.param('{"driverName":"refold","claimData":{"sha256":"K"},"zzz":1}', id="unknown-field"),
        pytest.param('{"driverName":"refold","claimData":{"sha256":"K","n":5}}', id="number-in-the-claim"),
        pytest.param('{"driverName":"zzz","driverName":"refold","claimData":{"sha256":"K"}}', id="driver-twice"),
        pytest.param('{"driverName":"refold","driver_name":"zzz","claimData":{"sha256":"K"}}', id="two-drivers"),
        pytest.param('{"driverName":"refold","claimData":{"sha256":"K"},"claim_data":{"sha256":""}}', id="two-claims"),
    ],
)
def test_what_the_sdk_reads_in_another_way_is_no_reference(tmp_path: Path, data: str) -> None:
    """
    Its error would fail the workflow task, again and again.
    """
    read = asyncio.run(as_input(reference(data.replace("K", KEY)), Folder(tmp_path)))

    assert read.metadata["encoding"] == b"a reference that refold did not write"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=references)
def test_no_reference_fails_a_workflow_task(tmp_path: Path, data: str) -> None:
    """
    Whatever a reference says, and however often: it is refused for the value that is missing, or is no reference.
    """
    read = asyncio.run(as_input(reference(data), Folder(tmp_path)))

    assert SURE in read.metadata or read.metadata["encoding"] == b"a reference that refold did not write"


def test_a_reference_to_a_part_by_a_key_that_is_not_here_waits_for_the_key(tmp_path: Path) -> None:
    """
    Such as to the journal of another task: the worker cannot read what is stored there, and waits as for other inputs.
    """
    storage, journal = Folder(tmp_path), ["an entry"]
    encrypting = data_converter(storage, Encryption({"other": b"o" * 32}))
    asyncio.run(encrypting.encode([Stored[list[str]](value=journal)]))
    key = key_of(to_json(journal))

    sent = reference(f'{{"driverName":"refold","claimData":{{"sha256":"{key}"}}}}')
    read = asyncio.run(as_input(sent, storage, Encryption({"here": b"h" * 32})))

    assert b"encrypted by the key 'other'" in read.metadata[NOW]
    assert SURE not in read.metadata
