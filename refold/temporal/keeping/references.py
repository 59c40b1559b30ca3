"""The stored values that a task's histories refer to, and whether another task may refer to them.

A value is stored under the hash of its content, so equal values of two tasks are one file. Two kinds are told apart:

- *own* values are journals and snapshots that a run left: they hold the task's id, which is read and compared, so no
  other task can have an equal one; and payloads that name such a value (*holders*);
- *shared* values are payloads that were too large for history: any task may have sent an equal one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from refold.engine import CodecError, StorageError
from refold.temporal.client.errors import server_refused
from refold.temporal.data.codec import CodecUnusable
from refold.temporal.data.payloads import PartsCodec, lacks_storage, parts_of, reference_in, still_encoded
from refold.temporal.data.storage import StorageUnusable, ValueMissing
from refold.temporal.data.wire import RESULT_MEMO
from refold.temporal.keeping.runs import history_of, payloads_in, plain

_PART = re.compile(rb'"sha256":\s*"([0-9a-f]{64})",\s*"size":')

_ENDS = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
)  # fmt: skip

_SENT = (EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED)
"""Events that hold what somebody sent to a task. He may say anything of its encoding, and no own value is in it."""


@dataclass(slots=True)
class References:
    """What histories refer to, by the values' keys.

    Attributes:
        own: Values that only this task can have.
        holders: Values that name own values, and so belong to this task alone: own values are found through them.
        shared: Values that another task may have, too.
        missing: Values that are not in this process's storage.
        unread: Values that cannot be read here, with the reason.
        locked: Why this process cannot tell now which values are the task's: it lacks a key, or the storage does not
            answer; empty if it can.
    """

    own: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    locked: str = ""


async def references_of(client: Client, task_id: str, runs: Iterable[str]) -> References:
    """What the runs of a task refer to."""
    codec, found = client.data_converter.payload_codec, References()
    assert isinstance(codec, PartsCodec)
    for run_id in runs:
        async for event in history_of(client, task_id, run_id):
            for payload in payloads_in(event):
                claim = reference_in(payload)
                named, kept = await _parts_in(client, payload, found, sent=event.event_type in _SENT)
                # Each run names the journals of all earlier ones.
                parts = {key for key in named if key in found.own or await _is_of(codec, key, task_id, found)}
                found.own |= parts
                if _is_end(event) and kept and not parts:
                    found.missing |= named - found.unread.keys()  # what a run ends with names its journal
                if claim is not None:
                    (found.holders if parts else found.shared).add(claim.claim_data["sha256"])
    return found


def _is_end(event: HistoryEvent) -> bool:
    """Whether an event holds what a run ended with: of a canceled task, its memo does."""
    memo = event.workflow_properties_modified_event_attributes.upserted_memo.fields
    return event.event_type in _ENDS or RESULT_MEMO in memo


async def _parts_in(client: Client, payload: Payload, found: References, *, sent: bool) -> tuple[set[str], bool]:
    """What looks like a reference to a stored part, by key, and whether the payload's own parts were to be stored."""
    try:
        decoded = await plain(payload, client.data_converter)
        if why := still_encoded(decoded):
            raise CodecError(why)
    except ValueMissing as error:
        found.missing.add(error.key)
        return set(), False
    except (CodecUnusable, StorageUnusable) as error:
        found.locked = str(error)
        return set(), False
    except CodecError as error:
        found.locked = found.locked if sent else str(error)
        return set(), False
    except StorageError as error:
        claim = reference_in(payload)
        found.unread["a payload" if claim is None else claim.claim_data["sha256"]] = str(error)
        return set(), False
    named = {key.decode() for key in _PART.findall(decoded.data)} - parts_of(decoded).keys()  # these travel with it
    return named, not lacks_storage(decoded)


async def _is_of(codec: PartsCodec, key: str, task_id: str, found: References) -> bool:
    """Whether a stored part is this task's: whoever writes a text can write what looks like a reference."""
    try:
        value = from_json(await codec.read(key))
    except (ValueMissing, ValueError):
        return False  # it is gone already, or is no value of ours
    except (CodecError, StorageUnusable) as error:
        found.locked = str(error)
        return False
    except StorageError as error:
        found.unread[key] = str(error)
        return False
    about = value.get("base", value) if isinstance(value, dict) else {}
    return isinstance(about, dict) and about.get("task_id") == task_id


async def used_elsewhere(client: Client, wanted: set[str], purged: set[str]) -> dict[str, str]:
    """Which of these values other workflows of the namespace refer to: by key, one of these workflows.

    Reads the history of every workflow that the server still has, but for those that are purged.
    """
    found: dict[str, str] = {}
    try:
        async for execution in client.list_workflows(""):
            if execution.id in purged:
                continue
            async for event in history_of(client, execution.id, execution.run_id):
                for payload in payloads_in(event):
                    claim = reference_in(payload)
                    if claim is not None and claim.claim_data["sha256"] in wanted:
                        found.setdefault(claim.claim_data["sha256"], execution.id)
    except RPCError as error:
        raise server_refused(error, "list workflows") from None
    return found
