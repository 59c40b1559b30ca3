"""A history against the code at hand: the first thing that the code says otherwise, without a server."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from refold.divergence import Difference
from refold.temporal.worker.plugin import RefoldPlugin


async def first_divergence(
    history: WorkflowHistory, plugin: RefoldPlugin, *, workflows: Sequence[type] = ()
) -> Difference | None:
    """The first thing that today's code says otherwise than a history holds; None if there is nothing.

    Entries are compared where history has marks; the kinds and ids of commands everywhere. One history at a time for
    each plugin.

    Args:
        history: Of one run of a task, from the server or from a file.
        plugin: With the skills.
        workflows: Other workflows, where the history is one of theirs.

    Raises:
        NondeterminismError: Temporal cannot replay it with this code, and no mark says what differs.
        RuntimeError: It cannot be replayed for another reason.
        StorageError, CodecError: What was recorded cannot be read.
    """
    result = await Replayer(workflows=workflows, plugins=[plugin]).replay_workflow(
        history, raise_on_replay_failure=False
    )
    if plugin.replayed.difference is None and result.replay_failure is not None:
        raise result.replay_failure
    return plugin.replayed.difference
