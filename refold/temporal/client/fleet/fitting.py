"""Workers of several builds on one task queue: what one of them cannot tell or take, another may.

The server gives a query or an update to any worker that polls, so that during a rolling deploy it may reach one whose
code does not fit the task. The server tries a workflow task again that fails, but no query and no update. It prefers
the worker that has the task in its cache, and a worker that has just refused has it. So before a query or an update is
sent again, the server is told to forget that preference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, cast

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.service import RPCError

from refold.divergence import DIFFERS
from refold.temporal.client.errors import NOT_FITTING
from refold.temporal.client.failed import ASK_PATIENCE
from refold.temporal.client.fleet.polling import polls_of

WORKERS_ASKED = 10
"""How many times a question is put again while workers of several builds poll: each of them polls five times at once,
and the server gives a question to whoever has waited longest."""

_UNFIT = (DIFFERS, NOT_FITTING, "the skills known here: ", "expected but not found")
"""What code says that is another one than the task's; the last is the SDK's, of a query or update that it lacks."""

T = TypeVar("T")


async def of_fitting_worker(client: Client, task_id: str, ask: Callable[[], Awaitable[T]]) -> T:
    """What a worker answers whose code fits the task, if workers of several builds poll its task queue.

    Args:
        client: Connected.
        task_id: The task.
        ask: Puts the question to any of them.

    Returns:
        Its answer; if no code fits that was asked, the last one's, which may say so by its `differs`.

    Raises:
        WorkflowQueryFailedError, WorkflowUpdateFailedError: Its answer is an error, or no code fits that was asked.
        Exception: Whatever else `ask` raises.
    """
    found = await _outcome(ask)
    if not found.fits and await _mixed(client, task_id):
        for _ in range(WORKERS_ASKED):
            await _free(client, task_id)
            found = await _outcome(ask)
            if found.fits:
                break
    if found.error is not None:
        raise found.error
    return cast("T", found.answer)


async def _free(client: Client, task_id: str) -> None:
    """Let the server give the task to any worker next, not to the one that has it in its cache."""
    task = WorkflowExecution(workflow_id=task_id)
    request = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=task)
    with suppress(RPCError):  # without the permission, or of a task that has ended: asked as before
        await client.workflow_service.reset_sticky_task_queue(request, retry=False, timeout=ASK_PATIENCE)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a worker said, and whether its code fits the task."""

    answer: object = None
    error: Exception | None = None
    fits: bool = True


async def _outcome(ask: Callable[[], Awaitable[object]]) -> _Outcome:
    try:
        answer = await ask()
    except (WorkflowQueryFailedError, WorkflowUpdateFailedError) as error:
        said = f"{error} {error.cause}"
        return _Outcome(error=error, fits=not any(words in said for words in _UNFIT))
    return _Outcome(answer, fits=not getattr(answer, "differs", ""))  # it may answer by what was recorded


async def _mixed(client: Client, task_id: str) -> bool:
    try:
        queue = (await client.get_workflow_handle(task_id).describe()).task_queue
        return len((await polls_of(client, queue)).builds()) > 1
    except RPCError:
        return False
