"""The lifecycle by itself: a state machine for one task over any store, without skills and without a server.

Rule 1: compute, persist, then commit. What the store does not take has not happened; so has what the table refuses.
Rule 2: what a store holds is the truth: a second process that changed it meanwhile is noticed, and nothing is lost.
Rule 3: an effect is marked *executing* in the store before it starts. Who finds that mark knows that nobody knows
        whether it took place: it is found out, or refused; never repeated blindly, never skipped blindly.
Rule 4: no clock is read here. The store says what time it is.

Tasks on a server do not use it: there the journal is the truth. Source: S3.86 to S3.92.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypedDict

from pydantic import JsonValue

from refold.core.codec import copied
from refold.core.errors import InputRejected, InvalidTransitionError, OutcomeUnknown
from refold.core.lifecycle import TERMINAL, TaskEvent, TaskState, next_state

APPROVAL_TIMEOUT_S = 1800.0
"""How long a pause may last, where nobody says otherwise."""

_log = logging.getLogger("refold.lifecycle")
_STEP = "step:"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTransition:
    """One move of a task, as it is stored; append-only.

    Attributes:
        task_id: The task.
        from_state: Where it was.
        to_state: Where it went.
        event: What moved it.
        timestamp: When, by the store's clock; aware.
        metadata: What whoever moved it says of it.
    """

    task_id: str
    from_state: TaskState
    to_state: TaskState
    event: TaskEvent
    timestamp: datetime
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A task as the store holds it.

    Attributes:
        task_id: The task.
        state: Where it is.
        retry_count: How often it was retried.
        checkpoint: What was kept for it, by key.
        version: Raised by one with each save; 0 was never saved.
        updated_at: When it was saved; aware.
    """

    task_id: str
    state: TaskState
    retry_count: int
    checkpoint: Mapping[str, JsonValue]
    version: int
    updated_at: datetime


class StatePersistence(Protocol):
    """Where tasks are kept. Called synchronously, once for each change; an exception means that nothing changed."""

    def now(self) -> datetime:
        """The time, aware."""
        ...

    def load(self, task_id: str) -> Stored | None:
        """The task as it was last saved; None where it never was."""
        ...

    def save(self, stored: Stored, transition: StateTransition | None) -> None:
        """Keep the task, and the move that led there, both or none.

        Raises:
            InputRejected: The store does not hold version `stored.version - 1`: somebody else was faster.
        """
        ...

    def history(self, task_id: str) -> Sequence[StateTransition]:
        """All moves of the task, oldest first."""
        ...


class InMemoryPersistence:
    """A store that lasts as long as it is held.

    Args:
        clock: What time it is; without it each question comes one second after the one before.
    """

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock
        self._ticks = 0
        self._tasks: dict[str, Stored] = {}
        self._rows: list[StateTransition] = []

    def now(self) -> datetime:
        """See `StatePersistence.now`."""
        if self._clock is not None:
            return self._clock()
        self._ticks += 1
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._ticks)

    def load(self, task_id: str) -> Stored | None:
        """See `StatePersistence.load`."""
        return self._tasks.get(task_id)

    def save(self, stored: Stored, transition: StateTransition | None) -> None:
        """See `StatePersistence.save`."""
        before = self._tasks.get(stored.task_id)
        refuse_stale(stored, 0 if before is None else before.version)
        self._tasks[stored.task_id] = stored
        if transition is not None:
            self._rows.append(transition)

    def history(self, task_id: str) -> Sequence[StateTransition]:
        """See `StatePersistence.history`."""
        return [row for row in self._rows if row.task_id == task_id]


def refuse_stale(stored: Stored, version: int) -> None:
    """What every store does before it keeps a task.

    Args:
        stored: What is to be kept.
        version: What the store holds.

    Raises:
        InputRejected: Somebody else was faster.
    """
    if stored.version != version + 1:
        raise InputRejected(
            f"task {stored.task_id!r} was changed meanwhile, to version {version}; this was made from version "
            f"{stored.version - 1}: load it again, and look at it anew"
        )


@dataclass(frozen=True, slots=True)
class TookPlace:
    """What a probe answers where the effect took place, with its result; None where it did not."""

    result: JsonValue = None


class Summary(TypedDict):
    """A task in a few words."""

    task_id: str
    state: str
    retry_count: int
    transition_count: int
    checkpoint_keys: list[str]
    is_terminal: bool


Probe = Callable[[str], TookPlace | None]
Callback = Callable[[StateTransition], object]


class TaskLifecycle:
    """One task's lifecycle, kept in a store. Goes on where the store says that the task is.

    Args:
        task_id: The task.
        persistence: Its store.
        max_retries: How often it may be retried.
    """

    def __init__(self, task_id: str, persistence: StatePersistence, max_retries: int = 3) -> None:
        self.task_id = task_id
        self.max_retries = max_retries
        self._store = persistence
        self._callbacks: list[Callback] = []
        self._load()

    # --- how it stands

    @property
    def state(self) -> TaskState:
        """Where the task is."""
        return self._now.state

    @property
    def retry_count(self) -> int:
        """How often it was retried; counted by RETRY, not by the error before it."""
        return self._now.retry_count

    @property
    def history(self) -> list[StateTransition]:
        """Its moves, oldest first; a copy."""
        return list(self._history)

    def summary(self) -> Summary:
        """The task in a few words."""
        return Summary(
            task_id=self.task_id,
            state=self.state.value,
            retry_count=self.retry_count,
            transition_count=len(self._history),
            checkpoint_keys=list(self._now.checkpoint),
            is_terminal=self.state in TERMINAL,
        )

    def on_transition(self, callback: Callback) -> None:
        """Call this after each move. What it raises is logged, and changes nothing."""
        self._callbacks.append(callback)

    # --- moves

    def transition(self, event: TaskEvent, metadata: Mapping[str, JsonValue] | None = None) -> TaskState:
        """Move the task.

        Returns:
            Where it is now.

        Raises:
            InvalidTransitionError: The table has no such move; nothing changed.
            InputRejected: No retry is left, or somebody else moved the task meanwhile; nothing changed.
        """
        event = TaskEvent(event)
        try:
            target = next_state(self.state, event)
        except InvalidTransitionError:
            _log.warning("Task %s: Rejected transition %s + %s", self.task_id, self.state.name, event.name)
            raise
        retries = self.retry_count + (event is TaskEvent.RETRY)
        if retries > self.max_retries:
            raise InputRejected(f"Max retries exceeded ({self.max_retries}) — use MAX_RETRIES_EXCEEDED event")
        move = StateTransition(
            task_id=self.task_id,
            from_state=self.state,
            to_state=target,
            event=event,
            timestamp=self._store.now(),
            metadata=dict(metadata or {}),
        )
        self._commit(replace(self._now, state=target, retry_count=retries), move)
        _log.info("Task %s: %s → %s (%s)", self.task_id, move.from_state.name, target.name, event.value)
        for callback in list(self._callbacks):
            try:
                callback(move)
            except Exception:  # noqa: BLE001 - whatever a callback raises is its own affair
                _log.exception("Task %s: a callback failed; the move stands", self.task_id)
        return target

    def recover(
        self, *, timeout_s: float = APPROVAL_TIMEOUT_S, resolved: Callable[[], bool] | None = None
    ) -> TaskState:
        """Load the task after a crash, and make the one move that the crash asks for, if it asks for one.

        Running: whoever ran it is gone, which is a transient error. Retrying: tried again, or failed where no retry is
        left. Paused: failed if its time is over, otherwise it waits on. Blocked: goes on if its dependency answers.
        What has ended stays so.

        Args:
            timeout_s: How long a pause may last.
            resolved: Asks the dependency of a blocked task; None lets it stay.

        Returns:
            Where the task is now.
        """
        self._load()
        match self.state:
            case TaskState.RUNNING:
                return self.transition(TaskEvent.TRANSIENT_ERROR, {"reason": "recovery_stale_running"})
            case TaskState.RETRYING if self.retry_count < self.max_retries:
                return self.transition(TaskEvent.RETRY, {"reason": "recovery"})
            case TaskState.RETRYING:
                return self.transition(TaskEvent.MAX_RETRIES_EXCEEDED, {"reason": "recovery"})
            case TaskState.PAUSED if self._store.now() - self._history[-1].timestamp > timedelta(seconds=timeout_s):
                return self.transition(TaskEvent.TIMEOUT, {"reason": "recovery_approval_timeout"})
            case TaskState.BLOCKED if resolved is not None and resolved():
                return self.transition(TaskEvent.DEPENDENCY_RESOLVED, {"reason": "recovery"})
            case state:
                return state

    # --- what is kept for it

    def set_checkpoint(self, key: str, value: JsonValue) -> None:
        """Keep a value, in the store at once."""
        self._commit(replace(self._now, checkpoint={**self._now.checkpoint, key: copied(value)}), None)

    def get_checkpoint(self, key: str, default: JsonValue = None) -> JsonValue:
        """A kept value; a copy."""
        value: JsonValue = copied(self._now.checkpoint.get(key, default))
        return value

    def has_checkpoint(self, key: str) -> bool:
        """Whether a value is kept under this key."""
        return key in self._now.checkpoint

    def execute_idempotent(
        self, step: str, effect: Callable[[str], JsonValue], *, probe: Probe | None = None
    ) -> JsonValue:
        """Let an effect take place once, and give its result ever after.

        Args:
            step: The effect's name, unique within the task.
            effect: Gets the idempotency key, `{task_id}:{step}`. What it raises leaves the outcome unknown.
            probe: Finds out, given the key, whether an effect of unknown outcome took place.

        Raises:
            OutcomeUnknown: It was started before, its outcome is not known, and there is no probe.
            InputRejected: Somebody else started it at the same moment.
        """
        self._load()  # another process may have done it
        key, mark = f"{self.task_id}:{step}", f"{_STEP}{step}"
        known = self._now.checkpoint.get(mark)
        if isinstance(known, dict) and known["status"] == "done":
            stored: JsonValue = copied(known["result"])
            return stored
        if known is not None:
            if probe is None:
                raise OutcomeUnknown(key)
            found = probe(key)
            if found is not None:
                return self._done(mark, found.result)
        self.set_checkpoint(mark, {"status": "executing"})
        return self._done(mark, effect(key))

    def _done(self, mark: str, result: JsonValue) -> JsonValue:
        self.set_checkpoint(mark, {"status": "done", "result": result})
        fresh: JsonValue = copied(result)
        return fresh

    # --- the store

    def _load(self) -> None:
        stored = self._store.load(self.task_id)
        history = list(self._store.history(self.task_id))
        _log.debug("Task %s: loaded %s", self.task_id, stored)
        self._history = history
        self._now = stored or Stored(
            task_id=self.task_id,
            state=TaskState.PLANNED,
            retry_count=0,
            checkpoint={},
            version=0,
            updated_at=self._store.now(),
        )

    def _commit(self, after: Stored, move: StateTransition | None) -> None:
        at = self._store.now() if move is None else move.timestamp
        after = replace(after, version=self._now.version + 1, updated_at=at)
        try:
            self._store.save(after, move)
        except Exception:
            _log.exception("Task %s: not saved, so that nothing changed", self.task_id)
            raise
        self._now = after
        if move is not None:
            self._history.append(move)


AgentTaskStateMachine = TaskLifecycle
"""The name that the source gives it."""
