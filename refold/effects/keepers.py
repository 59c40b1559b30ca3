"""Which task has an effect that several tasks share by its business key, and which task recovers another one."""

from __future__ import annotations

import re

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from refold.effects.asking import told

ORIGIN_MEMO = "refold-origin"
"""The memo that says how a task goes on from another one: memos are in what the server lists."""

ORIGIN_RUN_MEMO = "refold-origin-run"
"""The memo with the id of the other task's first run, which tells that task from a later one with the same id."""

_KEEPS = {WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED}


async def keeper_of(task_id: str) -> str:
    """The task that has an effect which this task made: itself, or one that recovers it; empty if none is open or done.

    Empty, too, if it is the task of the current activity. A task of which the server knows nothing, as after its
    namespace's retention, may have been done, and counts so.
    """
    own, ids = activity.info().workflow_id or "", [task_id]
    for id in ids:  # grows meanwhile: a recovery may be recovered, too
        if id == own:
            return ""
        task = await _described(id)
        if task is None:
            return "" if await _goes_on_for(own, id) else id
        if task.status in _KEEPS:
            return id
        ids += await _recoveries(task)
    return ""


async def _goes_on_for(own: str, deleted: str) -> bool:
    """Whether the current activity's task recovers one that the server knows no more, or a recovery of that one."""
    if not re.fullmatch(re.escape(deleted) + r"(\.r[0-9]+)+", own):
        return False
    task = await _described(own)
    return task is not None and await recovers(task)


async def _recoveries(failed: WorkflowExecutionDescription) -> list[str]:
    """The tasks that recover this one, of `{id}.r1`, `.r2` and so on. Those before one that was purged are known to the
    server's index alone, which lags behind, so that a new one is known by its id alone."""
    prefix, found = f"{failed.id}.r", []
    numbered = re.compile(re.escape(prefix) + r"([1-9][0-9]*)")
    listed = map(numbered.fullmatch, await told(lambda client: _below(client, prefix)) or ())
    numbers = sorted({1, *(int(one[1]) for one in listed if one)})
    for number in numbers:  # grows meanwhile
        task = await _described(f"{prefix}{number}")
        if task is None:
            continue
        if number + 1 not in numbers:
            numbers.append(number + 1)
        if await recovers(task, failed):
            found.append(task.id)
    return found


async def _below(client: Client, prefix: str) -> set[str]:
    """The ids of the workflows that begin so, as far as the index knows them."""
    escaped = prefix.replace("\\", "\\\\").replace("'", "\\'")
    return {one.id async for one in client.list_workflows(f"WorkflowId STARTS_WITH '{escaped}'")}


async def _described(task_id: str) -> WorkflowExecutionDescription | None:
    return await told(lambda client: client.get_workflow_handle(task_id).describe())


async def recovers(task: WorkflowExecutionDescription, failed: WorkflowExecutionDescription | None = None) -> bool:
    """Whether a task recovers this failed one, and not an earlier task of the same id, which was purged.

    Args:
        task: Of an id that tells which task it would recover.
        failed: That task; None if the server knows it no more.
    """
    origin = await task.memo_value(ORIGIN_MEMO, None)
    if origin is None or origin["how"] != "recovered":
        return False
    return failed is None or await task.memo_value(ORIGIN_RUN_MEMO, None) in (None, first_run(failed))


def first_run(task: WorkflowExecutionDescription) -> str:
    """The id of a task's first run; a reset keeps it, and an id that is used again has another one."""
    return task.raw_info.first_run_id or task.run_id
