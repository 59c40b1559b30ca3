"""The task lifecycle on its own: a state machine for one task over any store, without skills and without a server.

Rule 1: compute, persist, then commit. If the table or the store refuses a move, the task is unchanged.
Rule 2: the store is the truth. A change by another process is detected by the version, and no change is overwritten.
Rule 3: an effect is marked *executing* in the store before it starts. A process that finds the mark does not know the
        outcome: it asks a probe or raises `OutcomeUnknown`; it never repeats or skips the effect blindly.
Rule 4: this module reads no clock; the store supplies the time.

Tasks on a server do not use this module: their truth is the journal. Source: S3.86 to S3.92.
"""

from __future__ import annotations

import dis
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from types import CellType
from typing import Any, Protocol, TypedDict, TypeVar, cast

from pydantic import JsonValue

from refold.core.codec import NoData, codec, copied
from refold.core.errors import InputRejected, InvalidTransitionError
from refold.core.lifecycle import TERMINAL, TaskEvent, TaskState, next_state
from refold.core.values import DEEPEST
from refold.engine import OutcomeUnknown
from refold.engine.arguments import methods_take, takes

V = TypeVar("V")

APPROVAL_TIMEOUT_S = 1800.0
"""The default limit of a pause, in seconds."""

_log = logging.getLogger("refold.lifecycle")
_STEP = "step:"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTransition:
    """One move of a task, as stored; append-only.

    Attributes:
        task_id: The task.
        from_state: The state before the move.
        to_state: The state after the move.
        event: The event that caused the move.
        timestamp: The time by the store's clock; aware.
        metadata: The caller's notes on the move.
    """

    task_id: str
    from_state: TaskState
    to_state: TaskState
    event: TaskEvent
    timestamp: datetime
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """A task as the store holds it.

    Attributes:
        task_id: The task.
        state: The task's state.
        retry_count: The number of retries so far.
        checkpoint: The task's checkpointed values, by key.
        version: Raised by one with each save; 0 before the first.
        updated_at: The time of the last save; aware.
    """

    task_id: str
    state: TaskState
    retry_count: int
    checkpoint: Mapping[str, JsonValue]
    version: int
    updated_at: datetime


class StatePersistence(Protocol):
    """A store of tasks. `TaskLifecycle` calls it synchronously; an exception must mean that nothing was stored."""

    def now(self) -> datetime:
        """The current time; aware."""
        ...

    def load(self, task_id: str) -> StoredTask | None:
        """The task as last saved; None if it was never saved."""
        ...

    def save(self, stored: StoredTask, transition: StateTransition | None) -> None:
        """Save the task and the move that led there (None: a change without a move), both or neither.

        Raises:
            InputRejected: The store does not hold version `stored.version - 1`: another process changed the task.
        """
        ...

    def history(self, task_id: str) -> Sequence[StateTransition]:
        """All moves of the task, oldest first."""
        ...


class InMemoryPersistence:
    """A store in memory.

    Args:
        clock: Supplies the time; None makes each call of `now` return one second more than the last.
    """

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock
        self._ticks = 0
        self._tasks: dict[str, StoredTask] = {}
        self._rows: list[StateTransition] = []

    def now(self) -> datetime:
        """See `StatePersistence.now`."""
        if self._clock is not None:
            return self._clock()
        self._ticks += 1
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._ticks)

    def load(self, task_id: str) -> StoredTask | None:
        """See `StatePersistence.load`."""
        return self._tasks.get(task_id)

    def save(self, stored: StoredTask, transition: StateTransition | None) -> None:
        """See `StatePersistence.save`."""
        before = self._tasks.get(stored.task_id)
        refuse_stale(stored, 0 if before is None else before.version)
        self._tasks[stored.task_id] = stored
        if transition is not None:
            self._rows.append(transition)

    def history(self, task_id: str) -> Sequence[StateTransition]:
        """See `StatePersistence.history`."""
        return [row for row in self._rows if row.task_id == task_id]


def refuse_stale(stored: StoredTask, version: int) -> None:
    """Refuse to overwrite a newer version; every store calls this before it saves a task.

    Args:
        stored: The task to be saved.
        version: The version in the store.

    Raises:
        InputRejected: The store does not hold version `stored.version - 1`: another process changed the task.
    """
    if stored.version != version + 1:
        raise InputRejected(
            f"task {stored.task_id!r} was changed meanwhile, to version {version}; this was made from version "
            f"{stored.version - 1}: load it again, then decide again"
        )


@dataclass(frozen=True, slots=True)
class TookPlace:
    """A probe's answer that the effect took place, with its result. The probe returns None if it did not."""

    result: JsonValue = None


class Summary(TypedDict):
    """A short overview of a task."""

    task_id: str
    state: str
    retry_count: int
    transition_count: int
    checkpoint_keys: list[str]
    is_terminal: bool


Probe = Callable[[str], TookPlace | None]
Callback = Callable[[StateTransition], object]


@methods_take()
class TaskLifecycle:
    """One task's lifecycle in a store. Continues from the stored state.

    Args:
        task_id: The task.
        persistence: The store.
        max_retries: The most retries of the task.
    """

    @takes()
    def __init__(self, task_id: str, persistence: StatePersistence, max_retries: int = 3) -> None:
        self.task_id = task_id
        self.max_retries = max_retries
        self._store = persistence
        self._callbacks: list[Callback] = []
        self._load()

    # --- the current state

    @property
    def state(self) -> TaskState:
        """The task's state."""
        return self._now.state

    @property
    def retry_count(self) -> int:
        """The number of retries so far; raised by the event RETRY, not by the error before it."""
        return self._now.retry_count

    @property
    def history(self) -> list[StateTransition]:
        """The task's moves, oldest first; a copy."""
        return list(self._history)

    def summary(self) -> Summary:
        """A short overview of the task."""
        return Summary(
            task_id=self.task_id,
            state=self.state.value,
            retry_count=self.retry_count,
            transition_count=len(self._history),
            checkpoint_keys=list(self._now.checkpoint),
            is_terminal=self.state in TERMINAL,
        )

    def on_transition(self, callback: Callback) -> None:
        """Call `callback` after each move. An exception of the callback is logged, and the move stands."""
        self._callbacks.append(callback)

    # --- moves

    def transition(self, event: TaskEvent, metadata: Mapping[str, JsonValue] | None = None) -> TaskState:
        """Move the task.

        Returns:
            The new state.

        Raises:
            InvalidTransitionError: The table has no such move; nothing changed.
            InputRejected: There is no such event, the metadata is no JSON data, no retry is left, or another process
                moved the task meanwhile; nothing changed.
        """
        event, notes = _event(event), _data("the metadata", dict(metadata or {}))
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
            metadata=notes,
        )
        self._commit(replace(self._now, state=target, retry_count=retries), move)
        _log.info("Task %s: %s → %s (%s)", self.task_id, move.from_state.name, target.name, event.value)
        for callback in list(self._callbacks):
            try:
                callback(move)
            except Exception:  # noqa: BLE001 - an exception of a callback must not undo the move
                _log.exception("Task %s: a callback failed; the move stands", self.task_id)
        return target

    def recover(
        self, *, timeout_s: float = APPROVAL_TIMEOUT_S, resolved: Callable[[], bool] | None = None
    ) -> TaskState:
        """Load the task after a crash, and make at most one move.

        Running: the process that ran the task is gone, which counts as a transient error. Retrying: retried, or failed
        if no retry is left. Paused: failed if the pause has timed out, else unchanged. Blocked: resumed if `resolved`
        returns True. An ended task is unchanged.

        Args:
            timeout_s: The limit of a pause, in seconds.
            resolved: Whether the dependency of a blocked task is available; None leaves the task blocked.

        Returns:
            The task's state.

        Raises:
            InputRejected: Another process moved the task meanwhile.
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

    # --- checkpoints and effects

    def set_checkpoint(self, key: str, value: JsonValue) -> None:
        """Save a value under a key, at once in the store.

        Raises:
            InputRejected: The value is no JSON data, or another process changed the task meanwhile; nothing changed.
        """
        self._keep(key, _data(f"the checkpoint {key!r}", value))

    def get_checkpoint(self, key: str, default: JsonValue = None) -> JsonValue:
        """A copy of the value under a key; `default` if there is none."""
        value: JsonValue = copied(self._now.checkpoint.get(key, default))
        return value

    def has_checkpoint(self, key: str) -> bool:
        """Whether the task has a value under this key."""
        return key in self._now.checkpoint

    def execute_idempotent(
        self, step: str, effect: Callable[[str], JsonValue], *, probe: Probe | None = None
    ) -> JsonValue:
        """Perform an effect once. Returns its result; later calls return the recorded result.

        A process that still performs the effect looks like one that died in it: the probe must tell them apart.
        Other changes of the task while the effect is performed stay, and so does its result.

        Args:
            step: The effect's name, unique within the task.
            effect: Performs the effect, given the idempotency key `{task_id}:{step}`; a plain function that returns
                JSON data. After an exception, or another result, the outcome counts as unknown.
            probe: Finds out, given the key, whether an effect of unknown outcome took place.

        Raises:
            OutcomeUnknown: The effect was started before, its outcome is not known, and there is no probe.
            InputRejected: The effect is no function that can be called with the key alone, or another process changed
                the task just before the effect would have started, and nothing happened; or the result is no JSON
                data, the probe answered neither `TookPlace` nor None, or another process started the effect again
                because its probe answered None, and the outcome stays unknown.
        """
        if problem := _problem_with(effect):
            raise InputRejected(f"the effect {step!r} {problem}")
        self._load()  # another process may have performed the effect
        key, mark = f"{self.task_id}:{step}", f"{_STEP}{step}"
        known = self._now.checkpoint.get(mark)
        if isinstance(known, dict) and known.get("status") == "done":
            stored: JsonValue = copied(known["result"])
            return stored
        if known is not None:
            if probe is None:
                raise OutcomeUnknown(key)
            found = probe(key)
            if isinstance(found, TookPlace):
                return self._done(mark, known, found.result)
            if found is not None:
                raise InputRejected(
                    f"the probe of {key!r} answered {type(found).__name__}; it answers TookPlace(result) if it took "
                    "place, None if it did not"
                )
        mine: JsonValue = {"status": "executing", "version": self._now.version + 1}  # a version is saved once
        self._keep(mark, mine)
        result: Any = effect(key)  # whatever its annotation says
        if inspect.iscoroutine(result):
            result.close()
            raise InputRejected(f"the effect {step!r} returned a coroutine, {_NOT_AWAITED}; its outcome is unknown")
        return self._done(mark, mine, result)

    def _done(self, mark: str, executing: JsonValue, result: JsonValue) -> JsonValue:
        """Record the result in place of `executing`, also if others change the rest of the task meanwhile."""
        kept = _data(f"what the effect {mark.removeprefix(_STEP)!r} returned", result)
        while True:
            before = self._now.version
            try:
                self._keep(mark, {"status": "done", "result": kept})
            except InputRejected:
                self._load()
                found = self._now.checkpoint.get(mark)
                if isinstance(found, dict) and found.get("status") == "done":
                    kept = found["result"]  # another process's probe was faster
                elif found == executing and self._now.version != before:
                    continue
                else:
                    raise
            fresh: JsonValue = copied(kept)
            return fresh

    def _keep(self, key: str, data: JsonValue) -> None:
        self._commit(replace(self._now, checkpoint={**self._now.checkpoint, key: data}), None)

    # --- the store

    def _load(self) -> None:
        stored = self._store.load(self.task_id)
        history = list(self._store.history(self.task_id))
        _log.debug("Task %s: loaded %s", self.task_id, stored)
        self._history = history
        self._now = stored or StoredTask(
            task_id=self.task_id,
            state=TaskState.PLANNED,
            retry_count=0,
            checkpoint={},
            version=0,
            updated_at=self._store.now(),
        )

    def _commit(self, after: StoredTask, move: StateTransition | None) -> None:
        at = self._store.now() if move is None else move.timestamp
        after = replace(after, version=self._now.version + 1, updated_at=at)
        try:
            self._store.save(after, move)
        except InputRejected as refused:
            _log.warning("Task %s: not saved: %s", self.task_id, refused)
            raise
        except Exception:
            _log.exception("Task %s: not saved, so that nothing changed", self.task_id)
            raise
        self._now = after
        if move is not None:
            self._history.append(move)


def _event(event: TaskEvent) -> TaskEvent:
    try:
        return TaskEvent(event)
    except ValueError:
        raise InputRejected(f"there is no event {event!r}; there are {', '.join(TaskEvent)}") from None


def _problem_with(effect: Callable[[str], JsonValue]) -> str:
    """Why the effect cannot be performed; empty if it can. Once it is marked as begun, nobody knows that it was not."""
    called = effect.func if isinstance(effect, partial) else effect
    either = (effect, type(called).__call__)
    if any(map(inspect.iscoroutinefunction, either)):
        return f"is an `async def`, {_NOT_AWAITED}"
    if _calls_async_alone(effect):
        return f"calls an `async def`, {_NOT_AWAITED}"
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in either):
        return "is a generator, which nothing here iterates; give a plain function"
    try:
        inspect.signature(effect).bind("")
    except TypeError as error:
        return f"cannot be called with its key alone: {error}; give a function such as `lambda key: ...`"
    except ValueError:  # a built-in function that does not say what it takes
        pass
    return ""


_NOT_AWAITED = "which nothing here awaits; give a plain function, such as `lambda key: asyncio.run(pay(key))`"


def _calls_async_alone(effect: Callable[..., object]) -> bool:
    """Whether a function, such as a lambda, only calls an `async def`: the call makes a coroutine, and does nothing."""
    code = getattr(effect, "__code__", None)
    if code is None:
        return False
    done = [one for one in dis.get_instructions(code) if one.opname not in ("RESUME", "PUSH_NULL", "COPY_FREE_VARS")]
    if sum(one.opname.startswith("CALL") for one in done) != 1 or done[0].opname not in ("LOAD_GLOBAL", "LOAD_DEREF"):
        return False
    cells = zip(code.co_freevars, getattr(effect, "__closure__", None) or (), strict=True)
    names = getattr(effect, "__globals__", {}) | {
        name: cell.cell_contents for name, cell in cells if cell != CellType()
    }
    called = names.get(done[0].argval)  # what is called is loaded before its arguments
    for one in takewhile(lambda one: one.opname in ("LOAD_ATTR", "LOAD_METHOD"), done[1:]):
        called = inspect.getattr_static(called, one.argval, None)
    return inspect.iscoroutinefunction(called)


def _data(what: str, value: V) -> V:
    """A copy of JSON data, as every store gives it back."""
    try:
        return cast("V", codec(JsonValue).data(value))
    except NoData:
        raise InputRejected(
            f"{what} is a {type(value).__name__} that cannot be stored: give JSON data (None, bools, numbers, texts, "
            f"lists, and dicts with texts as keys), at most {DEEPEST} levels deep"
        ) from None


AgentTaskStateMachine = TaskLifecycle
"""The name of `TaskLifecycle` in the source document."""
