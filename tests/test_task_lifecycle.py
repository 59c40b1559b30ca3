"""The lifecycle by itself: the source's three demos, and the promises they rest on."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from refold.core.errors import DefinitionError, InputRejected, InvalidTransitionError
from refold.core.lifecycle import TERMINAL, TRANSITION_TABLE, TaskEvent, TaskState
from refold.core.values import DEEPEST
from refold.effects import Done, NotDone
from refold.engine import OutcomeUnknown
from refold.projection import Projection
from refold.task_lifecycle import (
    AgentTaskStateMachine,
    InMemoryPersistence,
    Probe,
    StatePersistence,
    StateTransition,
    StoredTask,
    TaskLifecycle,
    TookPlace,
)
from refold.task_store import SqlitePersistence
from refold.temporal.dev import dev_server

S, E = TaskState, TaskEvent


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> StatePersistence:
    return InMemoryPersistence(clock) if request.param == "memory" else SqlitePersistence(tmp_path / "tasks.db", clock)


# --- the three demos of the source


def test_demo_full_lifecycle(store: StatePersistence) -> None:
    """
    A refund: paused for approval, granted, retried once, done; six moves.
    """
    task = AgentTaskStateMachine("refund-001", store)

    task.transition(E.START, {"order": "A1"})
    task.set_checkpoint("validated", {"order": "A1", "cents": 5000})
    task.transition(E.PAUSE_FOR_APPROVAL)
    task.transition(E.APPROVAL_GRANTED, {"approver": "Ann"})
    task.transition(E.TRANSIENT_ERROR, {"status": 503})
    task.transition(E.RETRY)
    task.set_checkpoint("paid", True)
    assert task.transition(E.COMPLETE) is S.DONE

    assert task.summary() == {
        "task_id": "refund-001",
        "state": "done",
        "retry_count": 1,
        "transition_count": 6,
        "checkpoint_keys": ["validated", "paid"],
        "is_terminal": True,
    }


def test_demo_restart(store: StatePersistence) -> None:
    """
    What is done is done after a restart too: two moves in the history, and no third.
    """
    before = TaskLifecycle("job", store)
    before.transition(E.START)
    before.transition(E.COMPLETE, {"by": "worker 1"})
    del before

    after = TaskLifecycle("job", store)

    assert after.recover() is S.DONE
    assert [(row.from_state, row.event) for row in after.history] == [(S.PLANNED, E.START), (S.RUNNING, E.COMPLETE)]
    assert after.history[1].metadata == {"by": "worker 1"}


def test_demo_idempotent_execution(store: StatePersistence) -> None:
    """
    One call outside, however often it is asked for, and whoever asks.
    """
    calls: list[str] = []

    def pay(key: str) -> JsonValue:
        calls.append(key)
        return {"paid": 5000}

    first, second = TaskLifecycle("refund-001", store), TaskLifecycle("refund-001", store)

    results = [task.execute_idempotent("pay", pay) for task in (first, first, second)]

    assert results == [{"paid": 5000}] * 3
    assert calls == ["refund-001:pay"]


# --- moves


@pytest.mark.parametrize(("state", "event"), list(product(TaskState, TaskEvent)))
def test_the_table_is_the_law_here_too(state: TaskState, event: TaskEvent, clock: Clock) -> None:
    """
    Of 84 pairs fourteen move the task; what is refused changes nothing, the count of retries included.
    """
    store = InMemoryPersistence(clock)
    stored = StoredTask(task_id="t", state=state, retry_count=1, checkpoint={}, version=1, updated_at=clock())
    store.save(stored, None)
    task = TaskLifecycle("t", store)

    if (state, event) in TRANSITION_TABLE:
        assert task.transition(event) is TRANSITION_TABLE[state, event]
        assert task.retry_count == 1 + (event is E.RETRY)
        return
    with pytest.raises(InvalidTransitionError, match="Invalid transition: "):
        task.transition(event)
    assert (task.state, task.retry_count, task.history, store.load("t")) == (state, 1, [], stored)


def test_retries_are_bounded_and_counted_by_retry(store: StatePersistence) -> None:
    """
    0, 1, 2, 3 and no further: the fourth is refused, changes nothing, and says which event there is.
    """
    task = TaskLifecycle("t", store)
    task.transition(E.START)
    counts = []
    for _ in range(3):
        task.transition(E.TRANSIENT_ERROR)
        counts.append(task.retry_count)
        task.transition(E.RETRY)
    task.transition(E.TRANSIENT_ERROR)
    counts.append(task.retry_count)

    with pytest.raises(InputRejected) as raised:
        task.transition(E.RETRY)

    assert str(raised.value) == "Max retries exceeded (3) — use MAX_RETRIES_EXCEEDED event"
    assert (counts, task.retry_count, task.state) == ([0, 1, 2, 3], 3, S.RETRYING)
    assert task.transition(E.MAX_RETRIES_EXCEEDED) is S.FAILED


def test_the_history_is_a_copy(store: StatePersistence) -> None:
    """
    Nobody takes a move out of it, and a move never changes.
    """
    task = TaskLifecycle("t", store)
    task.transition(E.START)

    task.history.clear()

    assert len(task.history) == 1
    with pytest.raises(AttributeError):
        task.history[0].event = E.RETRY  # type: ignore[misc]


class Full(InMemoryPersistence):
    """A store whose disk is full."""

    def save(self, stored: StoredTask, transition: StateTransition | None) -> None:
        raise OSError("no space left on device")


def test_what_cannot_be_stored_does_not_happen(caplog: pytest.LogCaptureFixture) -> None:
    """
    The store is down: no move, no checkpoint, no effect.
    """
    task = TaskLifecycle("t", Full())

    with pytest.raises(OSError, match="no space"):
        task.transition(E.START)
    with pytest.raises(OSError, match="no space"):
        task.set_checkpoint("a", 1)
    with pytest.raises(OSError, match="no space"):
        task.execute_idempotent("pay", lambda key: pytest.fail("it took place"))

    assert (task.state, task.history, task.has_checkpoint("a")) == (S.PLANNED, [], False)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3


def test_two_processes_do_not_move_one_task(store: StatePersistence) -> None:
    """
    The slower one is refused, and sees the other's move when it looks again.
    """
    first, second = TaskLifecycle("t", store), TaskLifecycle("t", store)
    first.transition(E.START)

    with pytest.raises(InputRejected, match="was changed meanwhile, to version 1"):
        second.transition(E.START)

    assert second.state is S.PLANNED
    assert TaskLifecycle("t", store).state is S.RUNNING


def test_callbacks_hear_of_moves_and_cannot_stop_them(store: StatePersistence) -> None:
    """
    One that raises is logged; the others hear of it all the same.
    """
    heard: list[TaskEvent] = []

    def broken(move: StateTransition) -> None:
        raise RuntimeError("metrics are down")

    task = TaskLifecycle("t", store)
    task.on_transition(broken)
    task.on_transition(lambda move: heard.append(move.event))

    assert task.transition(E.START) is S.RUNNING

    assert heard == [E.START]


def test_moves_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """
    What happened as information, what was refused as a warning.
    """
    caplog.set_level(logging.INFO)
    task = TaskLifecycle("abc123", InMemoryPersistence())
    task.transition(E.START)
    task.transition(E.PAUSE_FOR_APPROVAL)
    with pytest.raises(InvalidTransitionError):
        task.transition(E.COMPLETE)

    assert [(record.levelname, record.getMessage()) for record in caplog.records[1:]] == [
        ("INFO", "Task abc123: RUNNING → PAUSED (pause_for_approval)"),
        ("WARNING", "Task abc123: Rejected transition PAUSED + COMPLETE"),
    ]


# --- checkpoints and effects


def test_checkpoints_are_stored_at_once(store: StatePersistence) -> None:
    """
    Not with the next move; and what is read is a copy.
    """
    task = TaskLifecycle("t", store)
    value: list[JsonValue] = [1]
    task.set_checkpoint("a", value)
    value.append(2)

    other = TaskLifecycle("t", store)

    assert (other.get_checkpoint("a"), other.get_checkpoint("b", 0), other.has_checkpoint("b")) == ([1], 0, False)


class Row(BaseModel):
    """Not JSON data, but something that a model might be written as."""

    at: datetime


ODD = [datetime(2026, 1, 1, tzinfo=UTC), {1}, (1, 2), Row(at=datetime(2026, 1, 1, tzinfo=UTC)), {1: 2}, [{"a": b"x"}]]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_is_no_data_is_refused_by_every_store(store: StatePersistence, odd: Any) -> None:
    """
    A store in memory would keep it, and a file would refuse it, or give back something else.
    """
    task = TaskLifecycle("t", store)
    task.transition(E.START)

    with pytest.raises(InputRejected, match=r"the checkpoint 'a' is a \w+ that cannot be stored: give JSON data"):
        task.set_checkpoint("a", odd)
    with pytest.raises(InputRejected, match="the metadata is a dict that cannot be stored"):
        task.transition(E.COMPLETE, {"a": odd})
    with pytest.raises(InputRejected, match=r"what the effect 'pay' returned is a \w+ that cannot be stored"):
        task.execute_idempotent("pay", lambda key: odd)

    assert (task.state, task.has_checkpoint("a")) == (S.RUNNING, False)
    with pytest.raises(OutcomeUnknown):  # it may have taken place, and is not repeated
        task.execute_idempotent("pay", lambda key: pytest.fail("twice"))


def test_a_result_may_nest_as_deep_as_a_checkpoint(store: StatePersistence) -> None:
    """
    What is stored beside it does not count.
    """
    deep: JsonValue = 1
    for _ in range(DEEPEST):
        deep = [deep]

    assert TaskLifecycle("t", store).execute_idempotent("pay", lambda key: deep) == deep
    assert TaskLifecycle("t", store).execute_idempotent("pay", crashes) == deep


def test_an_event_that_nobody_knows_is_refused(store: StatePersistence) -> None:
    """
    By its name, with those that there are.
    """
    with pytest.raises(InputRejected, match="there is no event 'begin'; there are start, pause_for_approval"):
        TaskLifecycle("t", store).transition("begin")  # type: ignore[arg-type]


class Crash(BaseException):
    """The process is gone."""


def crashes(key: str) -> JsonValue:
    raise Crash


def test_executing_is_in_the_store_before_the_call(store: StatePersistence) -> None:
    """
    A second caller that comes meanwhile does not start it again.
    """
    task = TaskLifecycle("t", store)

    def pay(key: str) -> JsonValue:
        with pytest.raises(OutcomeUnknown):
            TaskLifecycle("t", store).execute_idempotent("pay", lambda key: pytest.fail("twice"))
        return 1

    assert task.execute_idempotent("pay", pay) == 1


async def pays(key: str) -> JsonValue:
    return key


class Pays:
    async def __call__(self, key: str) -> JsonValue:
        return key


class Client:
    """A program's own, of a service."""

    async def pay(self, key: str) -> JsonValue:
        return key


CLIENT = Client()


def calling(function: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda key: function(key)  # noqa: PLW0108 - as a program has it


def yields(key: str) -> Iterator[str]:
    yield key


async def yields_later(key: str) -> AsyncIterator[str]:
    yield key


def without_key() -> JsonValue:
    return "paid"


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        (pays, r"effect 'pay' is an `async def`, which nothing here awaits; give a plain function"),
        (Pays(), r"effect 'pay' is an `async def`, which nothing here awaits; give a plain function"),
        (partial(Pays()), r"effect 'pay' is an `async def`, which nothing here awaits; give a plain function"),
        (lambda key: pays(key), r"effect 'pay' calls an `async def`, which nothing here awaits"),  # noqa: PLW0108 - as programs do
        (lambda key: CLIENT.pay(key), r"effect 'pay' calls an `async def`, which nothing here awaits"),  # noqa: PLW0108
        (calling(pays), r"effect 'pay' calls an `async def`, which nothing here awaits"),
        (yields, r"effect 'pay' is a generator, which nothing here iterates; give a plain function"),
        (yields_later, r"effect 'pay' is a generator, which nothing here iterates; give a plain function"),
        (without_key, r"effect 'pay' cannot be called with its key alone: too many positional arguments"),
        (lambda key, cents: cents, r"effect 'pay' cannot be called with its key alone: missing .*'cents'"),
    ],
)
def test_what_cannot_be_performed_is_not_begun(store: StatePersistence, effect: Any, said: str) -> None:
    """
    So the right function may be given after the wrong one, and nobody has to find out whether it took place.
    """
    with pytest.raises(InputRejected, match=said):
        TaskLifecycle("t", store).execute_idempotent("pay", effect)

    assert TaskLifecycle("t", store).execute_idempotent("pay", lambda key: key) == "t:pay"


def test_an_effect_may_run_a_coroutine(store: StatePersistence) -> None:
    """
    To its end: it is a plain function then.
    """
    assert TaskLifecycle("t", store).execute_idempotent("pay", lambda key: asyncio.run(pays(key))) == "t:pay"


def test_an_effect_that_also_makes_a_coroutine_may_have_taken_place(store: StatePersistence) -> None:
    """
    What else it did is not known.
    """

    def both(key: str) -> Any:
        str(key)
        return pays(key)

    with pytest.raises(InputRejected, match=r"returned a coroutine, which nothing here awaits.*outcome is unknown"):
        TaskLifecycle("t", store).execute_idempotent("pay", both)
    with pytest.raises(OutcomeUnknown):
        TaskLifecycle("t", store).execute_idempotent("pay", lambda key: pytest.fail("twice"))


def test_an_unknown_outcome_is_neither_repeated_nor_skipped(store: StatePersistence) -> None:
    """
    After a crash in the middle nobody knows, and whoever asks is told what to do.
    """
    with pytest.raises(Crash):
        TaskLifecycle("t", store).execute_idempotent("pay", crashes)

    with pytest.raises(OutcomeUnknown, match="'t:pay' was started before, and nobody knows") as raised:
        TaskLifecycle("t", store).execute_idempotent("pay", lambda key: pytest.fail("blindly"))

    assert raised.value.key == "t:pay"


@pytest.mark.parametrize(("found", "calls"), [(TookPlace(7), []), (None, ["t:pay"])])
def test_a_probe_finds_out(store: StatePersistence, found: TookPlace | None, calls: list[str]) -> None:
    """
    What took place is not repeated; what did not is performed.
    """
    made: list[str] = []

    def pay(key: str) -> JsonValue:
        made.append(key)
        return 7

    with pytest.raises(Crash):
        TaskLifecycle("t", store).execute_idempotent("pay", crashes)

    result = TaskLifecycle("t", store).execute_idempotent("pay", pay, probe=lambda key: found)

    assert (result, made) == (7, calls)
    assert TaskLifecycle("t", store).execute_idempotent("pay", crashes) == 7


Write = Callable[[StatePersistence], object]
MEANWHILE: dict[str, Write] = {
    "checkpoint": lambda store: TaskLifecycle("t", store).set_checkpoint("note", "seen"),
    "checkpoints": lambda store: noted(TaskLifecycle("t", store), 3),
    "pause": lambda store: TaskLifecycle("t", store).transition(E.PAUSE_FOR_APPROVAL),
    "end": lambda store: TaskLifecycle("t", store).transition(E.COMPLETE),
    "recovery": lambda store: TaskLifecycle("t", store).recover(),
    "another effect": lambda store: TaskLifecycle("t", store).execute_idempotent("mail", lambda key: "sent"),
    "another effect that crashes": lambda store: crashed(store, "mail"),
}
"""What others may write of a task while an effect of it is performed."""


def noted(task: TaskLifecycle, times: int) -> None:
    for number in range(times):
        task.set_checkpoint("note", number)


def crashed(store: StatePersistence, step: str, probe: Probe | None = None) -> None:
    with contextlib.suppress(Crash):
        TaskLifecycle("t", store).execute_idempotent(step, crashes, probe=probe)


@pytest.mark.parametrize("writes", [*product(MEANWHILE, MEANWHILE)], ids="-".join)
def test_a_result_is_stored_whatever_else_was_written_meanwhile(clock: Clock, writes: tuple[str, str]) -> None:
    """
    The effect has its result, and what others wrote stays; whether it is performed or found by a probe.
    """
    store = InMemoryPersistence(clock)
    TaskLifecycle("t", store).transition(E.START)
    crashed(store, "ship")
    first, second = (MEANWHILE[name] for name in writes)

    def write(then: Write) -> None:
        with contextlib.suppress(InvalidTransitionError, OutcomeUnknown):  # the second may not be possible any more
            then(store)

    def pay(key: str) -> JsonValue:
        write(first)
        return "paid"

    def shipped(key: str) -> TookPlace:
        write(second)
        return TookPlace("shipped")

    task = TaskLifecycle("t", store)
    assert task.execute_idempotent("pay", pay) == "paid"
    assert task.execute_idempotent("ship", crashes, probe=shipped) == "shipped"

    alone = InMemoryPersistence(clock)
    TaskLifecycle("t", alone).transition(E.START)
    for then in (first, second):
        with contextlib.suppress(InvalidTransitionError, OutcomeUnknown):
            then(alone)
    after, expected = TaskLifecycle("t", store), TaskLifecycle("t", alone)
    assert [after.execute_idempotent(step, crashes) for step in ("pay", "ship")] == ["paid", "shipped"]
    assert after.history == task.history == expected.history
    assert {*after.summary()["checkpoint_keys"]} == {*expected.summary()["checkpoint_keys"], "step:pay", "step:ship"}


class Hectic(InMemoryPersistence):
    """A store that others write to before each save."""

    hectic = 0

    def save(self, stored: StoredTask, transition: StateTransition | None) -> None:
        if self.hectic:
            self.hectic -= 1
            held = self.load("t")
            assert held is not None
            super().save(replace(held, version=held.version + 1), None)
        super().save(stored, transition)


def test_a_result_is_stored_however_often_others_are_faster(caplog: pytest.LogCaptureFixture) -> None:
    """
    Each time on the version that is the newest by then; nobody is alarmed.
    """
    store = Hectic()

    def pay(key: str) -> JsonValue:
        store.hectic = 5
        return "paid"

    assert TaskLifecycle("t", store).execute_idempotent("pay", pay) == "paid"
    assert TaskLifecycle("t", store).execute_idempotent("pay", crashes) == "paid"
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_result_that_another_process_has_recorded_stays(store: StatePersistence) -> None:
    """
    Its probe was faster: every caller has the same result.
    """

    def pay(key: str) -> JsonValue:
        found = TaskLifecycle("t", store).execute_idempotent("pay", crashes, probe=lambda key: TookPlace("receipt 1"))
        assert found == "receipt 1"
        return "receipt 2"

    assert TaskLifecycle("t", store).execute_idempotent("pay", pay) == "receipt 1"
    assert TaskLifecycle("t", store).execute_idempotent("pay", crashes) == "receipt 1"


def test_an_effect_that_another_process_has_started_again_is_its_own(store: StatePersistence) -> None:
    """
    A probe said that it did not take place: the result of the call before does not stand for the other call's.
    """

    def pay(key: str) -> JsonValue:
        crashed(store, "pay", probe=lambda key: None)
        return "receipt 1"

    with pytest.raises(InputRejected, match="was changed meanwhile"):
        TaskLifecycle("t", store).execute_idempotent("pay", pay)
    with pytest.raises(OutcomeUnknown):
        TaskLifecycle("t", store).execute_idempotent("pay", crashes)


class Strict(InMemoryPersistence):
    """A store that takes no results."""

    def save(self, stored: StoredTask, transition: StateTransition | None) -> None:
        if "done" in str(stored.checkpoint):
            raise InputRejected("too long")
        super().save(stored, transition)


def test_a_store_that_refuses_the_result_itself_is_asked_once() -> None:
    """
    Its refusal is raised: nobody has changed the task, so the next answer would be the same.
    """
    with pytest.raises(InputRejected, match="too long"):
        TaskLifecycle("t", Strict()).execute_idempotent("pay", lambda key: "paid")


@pytest.mark.parametrize("found", [Done("r-1"), NotDone(), True, {"result": 7}])
def test_a_probe_that_answers_otherwise_decides_nothing(store: StatePersistence, found: Any) -> None:
    """
    The answers of a tool's probe are others: the error names both that count, and the effect stays undecided.
    """
    with pytest.raises(Crash):
        TaskLifecycle("t", store).execute_idempotent("pay", crashes)

    task = TaskLifecycle("t", store)
    with pytest.raises(InputRejected, match=r"probe of 't:pay' .*TookPlace\(result\) if it took place, None if it did"):
        task.execute_idempotent("pay", lambda key: pytest.fail("blindly"), probe=lambda key: found)

    assert task.execute_idempotent("pay", crashes, probe=lambda key: TookPlace(7)) == 7


# --- recovery


def test_recovery_of_each_state(store: StatePersistence) -> None:
    """
    A stale running task is tried again, as often as retries are left; what has ended stays.
    """
    task = TaskLifecycle("t", store, max_retries=1)
    assert task.recover() is S.PLANNED
    task.transition(E.START)

    assert task.recover() is S.RETRYING
    assert task.history[-1].metadata == {"reason": "recovery_stale_running"}
    assert task.recover() is S.RUNNING
    assert task.recover() is S.RETRYING
    assert task.recover() is S.FAILED
    assert task.history[-1].event is E.MAX_RETRIES_EXCEEDED
    assert task.recover() in TERMINAL


def test_recovery_of_a_pause(store: StatePersistence, clock: Clock) -> None:
    """
    It waits on until its time is over; elapsed time never approves.
    """
    task = TaskLifecycle("t", store)
    task.transition(E.START)
    task.transition(E.PAUSE_FOR_APPROVAL)
    clock.pass_s(1800)
    assert TaskLifecycle("t", store).recover() is S.PAUSED

    clock.pass_s(1)
    late = TaskLifecycle("t", store)

    assert late.recover() is S.FAILED
    assert (late.history[-1].event, late.history[-1].metadata) == (E.TIMEOUT, {"reason": "recovery_approval_timeout"})


def test_recovery_of_a_block(store: StatePersistence, clock: Clock) -> None:
    """
    The dependency is asked; however long it takes, the task waits.
    """
    task = TaskLifecycle("t", store)
    task.transition(E.START)
    task.transition(E.BLOCK_ON_DEPENDENCY)
    clock.pass_s(1e6)

    assert task.recover() is S.BLOCKED
    assert task.recover(resolved=lambda: False) is S.BLOCKED
    assert task.recover(resolved=lambda: True) is S.RUNNING


def test_of_two_processes_one_moves_the_task(tmp_path: Path) -> None:
    """
    Each has a store of its own over one file: the second is refused, changes nothing, and goes on once it has looked.
    """
    one = TaskLifecycle("t", SqlitePersistence(tmp_path / "tasks.db"))
    other = TaskLifecycle("t", SqlitePersistence(tmp_path / "tasks.db"))
    one.transition(E.START)

    with pytest.raises(InputRejected, match="changed meanwhile"):
        other.transition(E.START)
    assert other.recover() is S.RETRYING
    assert [row.event for row in other.history] == [E.START, E.TRANSIENT_ERROR]
    stored = SqlitePersistence(tmp_path / "tasks.db").load("t")
    assert stored is not None
    assert (stored.state, stored.version) == (S.RETRYING, 2)


# --- the file of the store


def test_the_tables_of_a_projection_are_refused(tmp_path: Path) -> None:
    """
    They have the store's names and lack a column; they stay as they are.
    """
    file = tmp_path / "tasks.db"
    Projection(str(file)).row("t")
    before = file.read_bytes()

    with pytest.raises(DefinitionError, match=r"(?s)tasks.db.*table task_checkpoints has the columns .*another file"):
        SqlitePersistence(file)
    assert file.read_bytes() == before


async def test_the_file_of_a_development_server_is_refused(tmp_path: Path) -> None:
    """
    `refold dev --db` writes to it, and its tables are nobody's to add to.
    """
    async with dev_server(db=tmp_path / "tasks.db"):
        with pytest.raises(DefinitionError, match=r"(?s)tasks.db.*the tasks of a Temporal server.*another file"):
            SqlitePersistence(tmp_path / "tasks.db")

    with contextlib.closing(sqlite3.connect(tmp_path / "tasks.db")) as db:
        assert not db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'task_c%'").fetchall()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """
    SQLite itself does not say which.
    """
    (tmp_path / "text.db").write_text("something else " * 100)

    for file in ("none/tasks.db", "text.db"):
        with pytest.raises(sqlite3.DatabaseError, match=file):
            SqlitePersistence(tmp_path / file)
