"""A replay that was held up is tried again: a busy machine may stand still for longer than the SDK waits for code."""

from __future__ import annotations

from collections.abc import Callable

from temporalio.worker import Replayer, WorkflowReplayResult

from refold.temporal.client.errors import MISSED_DEADLINE

TRIES = 3
HANGS = (
    f"[{MISSED_DEADLINE}] in each of {TRIES} replays the code did not come back within the two seconds that the SDK "
    "waits: look for a loop that does not end, or a call that blocks"
)
"""What is said of code that missed the deadline in each try."""


def hangs(failure: Exception | None) -> bool:
    """Whether a replay failed since the code did not come back in time."""
    return MISSED_DEADLINE in str(failure)


async def tried_again(
    replayer: Replayer, result: WorkflowReplayResult, before: Callable[[], object] = lambda: None
) -> WorkflowReplayResult:
    """The result of a replay; if that missed the SDK's deadline, the result of another one.

    Args:
        replayer: Replays the history again.
        result: Of the first try.
        before: Called before each further try.
    """
    for _ in range(TRIES - 1):
        if not hangs(result.replay_failure):
            break
        before()
        result = await replayer.replay_workflow(result.history, raise_on_replay_failure=False)
    return result
