"""Writes a mark into what an activation of a task sends to the server anyway.

Which payload carries it, in this order:

1. Where people could read something new: a command that nothing takes back, such as the upsert of a pause; else any.
   What was said goes into its details.
2. Otherwise the first command that has a summary: the mark is one more item of its metadata.
3. An update's answer, where the activation has no command; what was said goes into the answer itself.
4. Where there is none of them nothing is written, and the next mark covers these entries too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json
from temporalio.api.common.v1 import Payload

from refold.core.fold.journal import Entry
from refold.digests import said_of
from refold.temporal.data.marks import KEY, SAID, packed, written

if TYPE_CHECKING:
    # The SDK's own, so not for certain there at run time; `committed` knows whether it is.
    from temporalio.bridge.proto.workflow_commands import WorkflowCommand
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

_LASTING = (
    "upsert_workflow_search_attributes",
    "complete_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
    "continue_as_new_workflow_execution",
    "start_child_workflow_execution",
)
TAKEN_BACK = {"schedule_activity": "request_cancel_activity", "start_timer": "cancel_timer"}
"""Commands that a later command of the same workflow task may take back, and that command."""

_ENDS = _LASTING[1:4]

BESIDE_BYTES = 8 * 1024
"""The most bytes of what was said that stand beside the mark: a larger payload may go to storage as a whole."""


def carriers(completion: WorkflowActivationCompletion) -> list[WorkflowCommand]:
    """The commands of a completion that may carry a mark, those that nothing can take back first."""
    commands = completion.successful.commands
    kinds = [(one.WhichOneof("variant") or "", one) for one in commands]
    back = {(kind, getattr(one, kind).seq) for kind, one in kinds if kind in TAKEN_BACK.values()}
    lasting = [one for kind, one in kinds if kind in _LASTING]
    begun = [(kind, one) for kind, one in kinds if kind in TAKEN_BACK]
    others = [one for kind, one in begun if (TAKEN_BACK[kind], getattr(one, kind).seq) not in back]
    answers = [one for one in commands if one.update_response.HasField("completed")]
    return [*lasting, *others] or answers


Payloads = Callable[[Any], Payload | None]
"""Writes a value as the worker's converter does; None where it is too large, as without storage for large values."""


def mark(
    completion: WorkflowActivationCompletion,
    task_id: str,
    digest: bytes,
    entries: Sequence[Entry],
    payloads: Payloads,
) -> None:
    """Write a mark into a completion that has carriers.

    Args:
        completion: Of the activation.
        task_id: The task.
        digest: Of its journal.
        entries: Those since the mark before, at least one.
        payloads: Writes what was said; words that are too large are left out.
    """
    seq = entries[-1].seq
    found = carriers(completion)
    ends = found[0].WhichOneof("variant") in _ENDS
    sent = {one.schedule_activity.activity_id or one.start_child_workflow_execution.workflow_id for one in found}
    # The result of a task that ends holds all its entries.
    new = [] if ends else [one for entry in entries if (one := said_of(entry, sent)) is not None]
    said = packed(new, seq, task_id)
    words = payloads(said) if said else None
    value = written(seq, digest)
    if found[0].HasField("update_response"):
        answer = found[0].update_response.completed
        answer.metadata[KEY] = value
        if words is not None:
            answer.data = to_json({**from_json(answer.data), SAID: said})
        return
    result = found[0].complete_workflow_execution.result
    if 0 < result.ByteSize() <= BESIDE_BYTES:  # a replay, which writes no mark, would store another large one
        result.metadata[KEY] = value
        return
    with_summary = [one for one in found if one.user_metadata.HasField("summary")]
    carrier = found[0] if words is not None or not with_summary else with_summary[0]
    metadata = carrier.user_metadata
    if words is not None:
        metadata.details.CopyFrom(words)
    beside = metadata.details if words is not None and metadata.details.ByteSize() <= BESIDE_BYTES else metadata.summary
    place = metadata.summary if metadata.HasField("summary") else beside
    place.metadata[KEY] = value
