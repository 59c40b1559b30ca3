"""The lifecycle table of a task (seven states, twelve events, fourteen moves); `Snapshot.status` derives A2A's.

The diagram in the docs is made from this table. Only events of this enumeration move a task, never the text of a model,
a tool or a user.

Source: S3.9 to S3.18.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from refold.core.errors import InvalidTransitionError
from refold.core.values import Value


class TaskState(StrEnum):
    """A task's lifecycle state."""

    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    BLOCKED = "blocked"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"


class TaskEvent(StrEnum):
    """An event that moves a task's lifecycle."""

    START = "start"
    PAUSE_FOR_APPROVAL = "pause_for_approval"
    APPROVAL_GRANTED = "approval_granted"
    APPROVAL_DENIED = "approval_denied"
    BLOCK_ON_DEPENDENCY = "block_on_dependency"
    DEPENDENCY_RESOLVED = "dependency_resolved"
    TRANSIENT_ERROR = "transient_error"
    RETRY = "retry"
    MAX_RETRIES_EXCEEDED = "max_retries_exceeded"
    COMPLETE = "complete"
    FATAL_ERROR = "fatal_error"
    TIMEOUT = "timeout"


S, E = TaskState, TaskEvent

TRANSITION_TABLE = MappingProxyType(
    {
        (S.PLANNED, E.START): S.RUNNING,
        (S.RUNNING, E.PAUSE_FOR_APPROVAL): S.PAUSED,
        (S.RUNNING, E.BLOCK_ON_DEPENDENCY): S.BLOCKED,
        (S.RUNNING, E.COMPLETE): S.DONE,
        (S.RUNNING, E.FATAL_ERROR): S.FAILED,
        (S.RUNNING, E.TRANSIENT_ERROR): S.RETRYING,
        (S.PAUSED, E.APPROVAL_GRANTED): S.RUNNING,
        (S.PAUSED, E.APPROVAL_DENIED): S.FAILED,
        (S.PAUSED, E.TIMEOUT): S.FAILED,
        (S.BLOCKED, E.DEPENDENCY_RESOLVED): S.RUNNING,
        (S.BLOCKED, E.FATAL_ERROR): S.FAILED,
        (S.RETRYING, E.RETRY): S.RUNNING,
        (S.RETRYING, E.MAX_RETRIES_EXCEEDED): S.FAILED,
        (S.RETRYING, E.FATAL_ERROR): S.FAILED,
    }
)
"""The fourteen legal moves; every other pair of state and event is illegal."""

TERMINAL = frozenset({TaskState.DONE, TaskState.FAILED})


class LifecycleMove(Value):
    """One move of the lifecycle, as the journal records it."""

    event: TaskEvent
    from_state: TaskState
    to_state: TaskState


def next_state(state: TaskState, event: TaskEvent) -> TaskState:
    """The state that `event` leads to from `state`.

    Raises:
        InvalidTransitionError: The table has no such move.
    """
    try:
        return TRANSITION_TABLE[state, event]
    except KeyError:
        raise InvalidTransitionError(state, event) from None


class Status(StrEnum):
    """The task's status in A2A's words. Source: A2A specification 1.0, TaskState, in lower case as 0.3 writes it."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REJECTED = "rejected"


class Ending(StrEnum):
    """How a task ended. The lifecycle knows only done and failed; A2A tells three kinds of failure apart."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELED = "canceled"


_OPEN_STATUS = MappingProxyType(
    {
        S.PLANNED: Status.SUBMITTED,
        S.RUNNING: Status.WORKING,
        S.RETRYING: Status.WORKING,
        S.BLOCKED: Status.WORKING,
        S.PAUSED: Status.INPUT_REQUIRED,
        S.DONE: Status.COMPLETED,
        S.FAILED: Status.FAILED,
    }
)


def derive_status(state: TaskState, ending: Ending | None = None) -> Status:
    """The A2A status of a task without open questions; `Snapshot.status` adds those.

    Args:
        state: The lifecycle state.
        ending: How the task ended; None while it is open.
    """
    return Status(ending) if ending is not None else _OPEN_STATUS[state]
