"""A task whose code differs from what was recorded: once a workflow task has failed, its worker gets no query.

The failure holds what the worker would have answered (`refold.temporal.recorded`), so the client answers from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription

from refold.conversation import conversation_of
from refold.core.errors import InputRejected
from refold.core.fold.snapshot import Snapshot
from refold.engine import CodecError, StorageError
from refold.engine.view import view_of
from refold.formats import NewerFormat, known_here
from refold.record import receipts, record_of
from refold.temporal.client.failed import failed_task
from refold.temporal.data.payloads import load
from refold.temporal.data.wire import CODE_DIFFERS, PAGE_ENTRIES, Page, Segment, Stopped


def soon(description: WorkflowExecutionDescription) -> bool:
    """Whether a task has something to take and has not failed at it yet: once it has, the failure answers."""
    return description.raw_description.HasField("pending_workflow_task") and (
        description.raw_description.pending_workflow_task.attempt <= 1
    )


async def answer(client: Client, description: WorkflowExecutionDescription, query: str, args: Sequence[Any]) -> Any:
    """What a stopped task's worker would answer; None where no difference stops the task, or this process cannot tell.

    Args:
        client: Connected.
        description: Of the task's open run.
        query: The query's name.
        args: Its arguments.

    Raises:
        InputRejected: Only the skill's code could answer.
        StorageError, CodecError: The journal cannot be read.
    """
    failed = await failed_task(client, description)
    if failed is None or failed.failure.application_failure_info.type != CODE_DIFFERS:
        return None
    details = failed.failure.application_failure_info.details.payloads
    if not details:
        return None
    try:
        with known_here("stopped task"):
            [stopped] = await client.data_converter.decode(details, [Stopped])
        now = await load(stopped.snapshot, client.data_converter, saved_as=("snapshot", stopped.format))
    except (StorageError, CodecError, NewerFormat):
        return None  # one task that this process cannot read must not hide the others in a list
    if query == "status":
        return view_of(now, stopped.differs).model_copy(update={"differs": stopped.found})
    if query == "record":
        return record_of(now).changed({"differs": stopped.differs})
    if query == "conversation":
        return conversation_of(now, *args)
    if query == "snapshot" or (query == "state_at" and args == (now.seq,)):
        return now
    journal: Segment = await load(stopped.journal, client.data_converter)
    if query == "state_at" and args == (journal.base.seq,):
        return journal.base  # what a fork or an export begins with
    if query == "receipts":
        return receipts(journal.entries)
    if query == "journal":
        return _page(stopped, now, journal, *args)
    raise InputRejected(f"only the code that recorded it can say. {stopped.differs}")


def _page(stopped: Stopped, now: Snapshot, journal: Segment, after: int = 0, limit: int = PAGE_ENTRIES) -> Page:
    return Page(
        entries=tuple(entry for entry in journal.entries if entry.seq > after)[: min(limit, PAGE_ENTRIES)],
        base=journal.base.seq,
        last=now.seq,
        lifecycle=now.lifecycle,
        status=now.status,
        earlier=stopped.earlier,
        differs=stopped.differs,
    )
