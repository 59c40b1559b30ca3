"""Signals of a task to its parts, and of a part to its task: sent again while the server refuses more of them.

The server accepts 10,000 signals for one run, and refuses more until the receiver goes on in a new run. A refused
signal is sent again, at growing intervals: it may bring the outcome of a part, its question, or an answer to it.

A patch marker in history says that the run sends again. A run in which an earlier release was refused has none, and
its replay sends nothing again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

FULL = "SignalCountLimitExceeded"
"""The type of the failure of a signal to a run that takes no more."""

PATCH = "refold.signal_again"

FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(minutes=5)


async def signal(task_id: str, name: str, said: Any, *, needed: Callable[[], bool] = lambda: True) -> None:
    """Signal the open run of another task; called from workflow code only.

    Args:
        task_id: The other task.
        name: The signal.
        said: Its argument.
        needed: Whether the receiver still needs it; asked before it is sent again.

    Raises:
        ApplicationError: There is no such task, it has ended, or its run takes no more signals and the signal is not
            sent again.
    """
    receiver, pause = workflow.get_external_workflow_handle(task_id), FIRST_PAUSE
    while True:
        try:
            await receiver.signal(name, said)
        except ApplicationError as error:
            if error.type != FULL or not needed() or not workflow.patched(PATCH):
                raise
        else:
            return
        await workflow.sleep(pause, summary=f"{task_id} takes no more signals in this run")
        pause = min(2 * pause, LONGEST_PAUSE)
