"""The ledger in SQLite: on the disk before it answers, shared by processes, believed by its clock alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from structlog.testing import capture_logs

from refold.core.commands import result_hash
from refold.core.errors import DefinitionError
from refold.effects.ledger.ledger import Ledger, LedgerUnavailable, fingerprint, is_local
from refold.effects.ledger.making import VERSION
from refold.effects.ledger.receipts import (
    Ask,
    Begun,
    Finished,
    InDoubt,
    InProgress,
    KeyReused,
    LedgerAnswer,
    LedgerReceipt,
    ReceiptState,
    renew,
)
from refold.effects.ledger.spending import Spending
from refold.effects.ledger.store import store_from_env, store_of
from refold.engine import PayloadTooLarge

ROOT = Path(__file__).parents[3]


class Clock:
    """Seconds since 1970, as a test says."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def two(ledger_file: Path, clock: Clock) -> tuple[Ledger, Ledger]:
    """Two workers with one file; without the threads that keep leases."""
    return Ledger(store_of(str(ledger_file), clock=clock)), Ledger(store_of(str(ledger_file), clock=clock))


def asking(ledger: Ledger, key: str = "k", **args: int) -> Ask:
    return ledger.ask(key, "charge", dict(args), task_id="T")


def begin(ledger: Ledger, key: str = "k", **args: int) -> LedgerAnswer:
    return ledger.begin(asking(ledger, key, **args))


def performing(told: LedgerAnswer) -> int:
    assert isinstance(told, Begun)
    return told.fence


# --- what is kept


def test_a_result_is_found_by_all(two: tuple[Ledger, Ledger]) -> None:
    """
    Done by one worker, known to the other, and to whoever opens the file later.
    """
    one, other = two
    fence = performing(begin(one, cents=5))

    assert one.finish("k", fence, {"paid": [1, None, "ä\ud800"]}) == {"paid": [1, None, "ä\ud800"]}
    told = begin(other, cents=5)

    assert isinstance(told, Finished)
    assert told.value == {"paid": [1, None, "ä\ud800"]}
    found = Ledger(one.store).look("k")
    assert found is not None
    assert (found.state, found.task_id, found.holder) == (ReceiptState.DONE, "T", one.holder)


def test_one_at_a_time(two: tuple[Ledger, Ledger]) -> None:
    """
    While one performs, another waits: in the same process, and in another.
    """
    one, other = two
    performing(begin(one))

    assert isinstance(begin(one), InProgress)
    assert isinstance(begin(other), InProgress)


def test_other_arguments_are_another_effect(two: tuple[Ledger, Ledger]) -> None:
    """
    The stored result is not handed out for them.
    """
    one, other = two
    one.finish("k", performing(begin(one, cents=5)), "paid")

    assert begin(other, cents=6) == KeyReused(known=fingerprint({"cents": 5}), given=fingerprint({"cents": 6}))


def test_the_order_of_arguments_does_not_matter() -> None:
    """
    A fingerprint is of the values.
    """
    assert fingerprint({"a": 1, "b": [{"c": 1, "d": 2}]}) == fingerprint({"b": [{"d": 2, "c": 1}], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})


def test_what_was_released_may_be_performed(two: tuple[Ledger, Ledger]) -> None:
    """
    By anybody, with a higher fence.
    """
    one, other = two
    one.release("k", performing(begin(one)), "it was refused")

    assert begin(other) == Begun(fence=2)


# --- leases


def test_silence_is_a_doubt(two: tuple[Ledger, Ledger], clock: Clock) -> None:
    """
    A worker is believed for one lease; after that nobody knows, and nobody performs.
    """
    one, other = two
    performing(begin(one))

    clock.now += 29.9
    assert isinstance(begin(other), InProgress)
    clock.now += 0.2
    told = begin(other)

    assert isinstance(told, InDoubt)
    assert (told.fence, told.receipt.state) == (1, ReceiptState.UNKNOWN)
    assert isinstance(begin(other), InDoubt)


def test_a_clock_that_goes_back_keeps_no_lease_for_longer(two: tuple[Ledger, Ledger], clock: Clock) -> None:
    """
    It was hours ahead when the worker began, which then died. The log says so once.
    """
    one, other = two
    clock.now += 5 * 3600
    performing(begin(one))
    clock.now -= 5 * 3600

    with capture_logs() as logs:
        assert [type(begin(other)) for _ in range(2)] == [InProgress] * 2
    clock.now += 30.1

    assert isinstance(begin(other), InDoubt)
    assert [(log["event"], log["key"], log["seconds"]) for log in logs] == [("clock_went_back", "k", 5 * 3600)]


def test_a_late_result_settles_the_doubt(two: tuple[Ledger, Ledger], clock: Clock) -> None:
    """
    The stalled worker's result counts, as nobody took over.
    """
    one, other = two
    fence = performing(begin(one))
    clock.now += 60
    assert isinstance(begin(other), InDoubt)

    one.finish("k", fence, "late")

    told = begin(other)
    assert isinstance(told, Finished)
    assert told.value == "late"


def test_whoever_was_taken_over_cannot_report(two: tuple[Ledger, Ledger], clock: Clock) -> None:
    """
    The newest performer's result is the one that is kept.
    """
    one, other = two
    late = performing(begin(one))
    clock.now += 60
    doubt = begin(other)
    assert isinstance(doubt, InDoubt)
    newest = performing(other.take_over(other.ask("k", "charge", {}), doubt.fence))

    assert one.finish("k", late, "late") == "late"
    assert isinstance(begin(one), InProgress)
    other.finish("k", newest, "newest")

    told = begin(one)
    assert isinstance(told, Finished)
    assert told.value == "newest"


def test_a_worker_at_work_keeps_its_lease(ledger_file: Path) -> None:
    """
    Its thread extends the lease, however long the effect takes.
    """
    with Ledger(str(ledger_file), lease_s=0.06) as ledger:
        fence = performing(begin(ledger))
        first = ledger.look("k")
        assert first is not None
        renewed = threading.Event()
        while (found := ledger.look("k")) is not None and found.lease_until <= first.lease_until + 0.06:
            renewed.wait(0.001)
        ledger.finish("k", fence, "done")


def test_a_short_lease_is_kept_beside_a_long_one(ledger_file: Path) -> None:
    """
    The one that is over first is extended first, whichever began first.
    """
    with Ledger(str(ledger_file)) as ledger:
        performing(ledger.begin(ledger.ask("long", "charge", {}, lease_s=3600)))
        performing(ledger.begin(ledger.ask("short", "charge", {}, lease_s=0.06)))
        first = ledger.look("short")
        assert first is not None
        renewed = threading.Event()
        while (found := ledger.look("short")) is not None and found.lease_until <= first.lease_until + 0.06:
            renewed.wait(0.001)


def test_a_worker_that_stood_still(ledger_file: Path, clock: Clock) -> None:
    """
    SIGSTOP, the lease is over, SIGCONT: the late result is taken, and nobody performs a second time.
    """
    other = Ledger(store_of(str(ledger_file), clock=clock))
    process = run("hold", ledger_file, "k")
    assert line(process) == "began 1"
    os.kill(process.pid, signal.SIGSTOP)

    clock.now = 1e12  # long after the lease
    assert isinstance(begin(other), InDoubt)
    os.kill(process.pid, signal.SIGCONT)
    process.communicate("\n", timeout=100)

    told = begin(other)
    assert isinstance(told, Finished)
    assert told.value == "by the process"


def test_a_worker_that_stands_still_amid_a_change_holds_up_nobody(two: tuple[Ledger, Ledger]) -> None:
    """
    Others change the same receipt meanwhile; what the worker makes of it is computed again from theirs.
    """
    one, other = two
    begin(one)
    seen: list[str] = []

    def slowly(found: LedgerReceipt | None, now: float) -> LedgerReceipt | None:
        seen.append(found.state if found else "")
        other.finish("k", 1, "paid")
        return renew(found, 1, 60.0, now)

    found = one.store.change("k", slowly)

    assert seen == ["executing", "done"]
    assert found == one.store.read("k")
    assert found is not None
    assert found.result == '"paid"'


def test_a_worker_that_was_killed(ledger_file: Path, clock: Clock) -> None:
    """
    SIGKILL inside an effect: the next worker is in doubt once the lease is over, and does not perform.
    """
    other = Ledger(store_of(str(ledger_file), clock=clock))
    process = run("hold", ledger_file, "k")
    assert line(process) == "began 1"
    process.kill()
    process.communicate(timeout=100)

    clock.now = 0
    assert isinstance(begin(other), InProgress)
    clock.now = 1e12
    assert isinstance(begin(other), InDoubt)


@pytest.mark.slow
def test_workers_that_start_together_share_a_new_file(ledger_file: Path, tmp_path: Path) -> None:
    """
    None of them finds it locked by another that sets it up.
    """
    processes = [run("first_use", ledger_file, str(tmp_path), "12") for _ in range(3)]
    for number in range(12):
        assert [line(process) for process in processes] == [str(number)] * 3
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    assert [process.communicate(timeout=100)[0] for process in processes] == ["done\n"] * 3


@pytest.mark.slow
def test_processes_with_one_file(ledger_file: Path, tmp_path: Path) -> None:
    """
    Three workers want the same 20 effects at the same moment: each takes place once.
    """
    effects = tmp_path / "effects"
    processes = [run("race", ledger_file, str(effects), "20") for _ in range(3)]
    assert [line(process) for process in processes] == ["ready"] * 3
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=100)
        assert process.returncode == 0

    assert sorted(effects.read_text().split()) == sorted(f"key-{number}" for number in range(20))


def test_a_forked_process_is_not_taken_for_its_sibling(ledger_file: Path) -> None:
    """
    A ledger that is made before the workers fork: each has a name of its own, and the second waits for the first.
    """
    process = run("forked", ledger_file, ledger_file)

    told, _ = process.communicate(timeout=100)

    assert (told, process.returncode) == ("InProgress\n", 0)


def test_a_worker_that_is_forked_from_one_that_used_the_ledger_loses_no_receipt(ledger_file: Path) -> None:
    """
    It opens the file itself: SQLite's locks do not survive a fork, and without them the log is deleted under it.
    """
    process = run("forked_later", ledger_file.with_name("other.db"), ledger_file)

    told, _ = process.communicate(timeout=100)

    assert (told, process.returncode) == ("Finished\n", 0)


def test_a_worker_that_is_forked_from_one_at_work_has_threads_of_its_own(ledger_file: Path) -> None:
    """
    It waits for its parent's effect, performs another one, and leaves its parent at work.
    """
    process = run("forked_at_work", ledger_file.with_name("other.db"), ledger_file)

    told, _ = process.communicate(timeout=100)

    assert (told, process.returncode) == ("InProgress Begun\nFinished\n", 0)


def run(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.effects.ledger.by_process", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# --- a person


def test_a_person_says_what_happened(two: tuple[Ledger, Ledger]) -> None:
    """
    An outcome stands for the result; a release lets it be performed.
    """
    one, other = two
    for key in ("paid", "lost"):
        one.doubt(key, performing(begin(one, key)), "no answer came")
    assert one.resolve(asking(one, "paid"), {"receipt": 7}) == {"receipt": 7}
    assert one.resolve(asking(one, "paid"), "something else") == {"receipt": 7}, "what is known stays"
    one.resolve(asking(one, "never begun"), 5)
    one.release("lost")

    told = begin(other, "paid")
    assert isinstance(told, Finished)
    assert told.value == {"receipt": 7}
    assert begin(other, "never begun") == Finished(result="5")
    assert begin(other, "lost") == Begun(fence=2)


def test_what_a_person_says_is_of_the_arguments_it_was_asked_about(two: tuple[Ledger, Ledger]) -> None:
    """
    The receipt of other arguments stays as it is, unless its effect did not take place.
    """
    one, other = two
    one.finish("done", performing(begin(one, "done", cents=5)), "paid")
    one.doubt("lost", performing(begin(one, "lost", cents=5)), "no answer came")
    one.release("free", performing(begin(one, "free", cents=5)), "refused")
    reused = KeyReused(known=fingerprint({"cents": 5}), given=fingerprint({"cents": 6}))

    assert one.resolve(asking(one, "done", cents=6), "sent") == reused
    assert one.resolve(asking(one, "lost", cents=6), "sent") == reused
    assert one.resolve(asking(one, "free", cents=6), "sent") == "sent"

    assert begin(other, "done", cents=5) == Finished(result='"paid"')
    assert isinstance(begin(other, "lost", cents=5), InDoubt)
    assert begin(other, "free", cents=6) == Finished(result='"sent"')


def test_what_was_undone_may_be_performed_again(two: tuple[Ledger, Ledger]) -> None:
    """
    By whoever asks, once for each undoing; an undoing that is told late, or of another result, changes nothing.
    """
    one, other = two
    one.finish("paid", performing(begin(one, "paid")), {"receipt": 7})

    one.undone("paid", "T/2.1~undo", result_hash({"receipt": 8}))
    assert begin(other, "paid") == Finished(result='{"receipt":7}')
    one.undone("paid", "T/2.1~undo", result_hash({"receipt": 7}))
    assert begin(other, "paid") == Begun(fence=2, undone=1)
    other.finish("paid", 2, {"receipt": 7})
    one.undone("paid", "T/2.1~undo", result_hash({"receipt": 7}))
    assert begin(one, "paid") == Finished(result='{"receipt":7}')
    one.undone("paid", "T2/9.1~undo", result_hash({"receipt": 7}))
    assert begin(one, "paid") == Begun(fence=3, undone=2)


def test_a_ledger_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """
    Its receipts stay.
    """
    file = tmp_path / "ledger.db"
    with Ledger(str(file)) as ledger:
        ledger.finish("paid", performing(begin(ledger, "paid")), 7)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP INDEX refold_receipts_changed_at")
        connection.execute("ALTER TABLE refold_receipts DROP COLUMN undone")
        connection.execute("ALTER TABLE refold_receipts DROP COLUMN undone_by")
        connection.execute("UPDATE refold_schema SET version = 1")
        connection.commit()

    with Ledger(str(file)) as ledger:
        assert begin(ledger, "paid") == Finished(result="7")
        ledger.undone("paid", "T/2.1~undo", result_hash(7))
        assert begin(ledger, "paid") == Begun(fence=2, undone=1)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'refold%changed_at'").fetchall()


def test_old_receipts_are_pruned(two: tuple[Ledger, Ledger], clock: Clock) -> None:
    """
    What is settled goes. What may have happened stays, and so does what was undone: its count is part of the next key.
    """
    ledger, other = two
    for key in ("done", "released", "undone", "unknown", "executing"):
        performing(begin(ledger, key))
    ledger.finish("done", 1, "paid")
    ledger.release("released", 1)
    ledger.finish("undone", 1, "paid")
    ledger.undone("undone", "T/2.1~undo", result_hash("paid"))
    ledger.doubt("unknown", 1, "no answer came")
    clock.now += 100
    performing(begin(ledger, "new"))
    ledger.finish("new", 1, "paid")

    assert other.store.prune(101) == 0
    assert other.store.prune(99) == 2

    assert [key for key in ("done", "released", "undone", "unknown", "executing", "new") if other.look(key)] == [
        *("undone", "unknown", "executing", "new")
    ]


def test_more_receipts_than_one_transaction_deletes(ledger_file: Path, clock: Clock) -> None:
    """
    All go, a thousand at a time.
    """
    ledger = Ledger(store_of(str(ledger_file), clock=clock))
    begin(ledger)
    with closing(sqlite3.connect(ledger_file)) as connection:
        connection.execute("CREATE TEMP TABLE one AS SELECT * FROM refold_receipts")
        for number in range(2_001):
            connection.execute("UPDATE one SET state = 'done', key = ?", [str(number)])
            connection.execute("INSERT INTO refold_receipts SELECT * FROM one")
        connection.commit()
    clock.now += 1

    assert ledger.store.prune(0.5) == 2_001
    assert ledger.store.counts() == {"executing": 1, "done": 0, "unknown": 0, "released": 0}


# --- trouble


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_a_file_that_cannot_be_written(open_folder: Path) -> None:
    """
    The effect does not start, and the message names the file.
    """
    file = open_folder / "ledger.db"
    performing(begin(Ledger(str(file))))
    file.chmod(0o444)

    process = run("unprivileged", file)
    said, _ = process.communicate(timeout=100)

    assert (
        said
        == f"unavailable: the receipt ledger (REFOLD_LEDGER) in the file {file} cannot be used: Permission denied\n"
    )


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    """
    A named folder is not made: where it is missing, a disk is not mounted.
    """
    with pytest.raises(LedgerUnavailable, match="does not exist; make it, or correct REFOLD_LEDGER"):
        begin(Ledger(str(tmp_path / "disk" / "ledger.db")))


def test_a_file_that_goes_away(ledger_file: Path) -> None:
    """
    Nothing is written into a file that nobody can read any more, receipts or sums; once it is back, it goes on.
    """
    ledger = Ledger(str(ledger_file))
    fence = performing(begin(ledger))
    aside = ledger_file.with_name("aside")
    ledger_file.rename(aside)

    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        begin(ledger, "other")
    ledger_file.touch()
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        begin(ledger, "other")
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        Spending(ledger.store).add("ann", tokens=1, usd=0.1)
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        ledger.store.prune(0.0)
    aside.rename(ledger_file)

    ledger.finish("k", fence, "done")
    assert isinstance(begin(ledger), Finished)


def test_no_database_at_all(ledger_file: Path) -> None:
    """
    A file that is something else is refused at the start, and left alone.
    """
    ledger_file.write_text("some notes" * 1000)

    with pytest.raises(DefinitionError, match=r"ledger\.db is no SQLite database: name another file"):
        Ledger(str(ledger_file))
    assert ledger_file.read_text() == "some notes" * 1000


def test_what_is_owed_is_written_later(ledger_file: Path) -> None:
    """
    The effect took place while the disk was gone: its result is handed on, and written once the disk is back.
    """
    with Ledger(str(ledger_file)) as ledger:
        fence = performing(begin(ledger))
        aside = ledger_file.with_name("aside")
        ledger_file.rename(aside)

        assert ledger.finish("k", fence, "paid") == "paid"
        assert isinstance(begin(ledger), InProgress), "nobody performs it meanwhile"
        aside.rename(ledger_file)

    told = begin(Ledger(str(ledger_file)))
    assert isinstance(told, Finished)
    assert told.value == "paid"


class KeyService:
    """A seal whose keys are on another machine, and which never takes some texts."""

    def __init__(self) -> None:
        self.away = False
        self.refuses = ""

    def sealed(self, text: str) -> str:
        if self.away:
            raise RuntimeError("the keys cannot be reached")
        if self.refuses and self.refuses in text:
            raise PayloadTooLarge("the codec takes no such text")
        return text[::-1]

    def opened(self, sealed: str) -> str:
        return sealed[::-1]


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(
    ("report", "state"),
    [
        (lambda ledger, fence: ledger.finish("k", fence, "paid"), ReceiptState.DONE),
        (lambda ledger, fence: ledger.doubt("k", fence, "no answer"), ReceiptState.UNKNOWN),
        (lambda ledger, fence: ledger.release("k", fence, "refused"), ReceiptState.RELEASED),
        (lambda ledger, fence: ledger._renew("k", ledger._holds["k"]), ReceiptState.EXECUTING),
    ],
    ids=["finished", "doubted", "released", "renewed"],
)
def test_a_receipt_that_the_database_has_lost_is_written_again(
    two: tuple[Ledger, Ledger], report: Callable[[Ledger, int], object], state: ReceiptState, restored: bool
) -> None:
    """
    Emptied, or restored from a backup that has an earlier attempt: whoever performs the effect knows better, and says.
    """
    one, other = two
    one.release("k", performing(begin(one)), "refused")
    fence = performing(begin(one))
    begun = one.store.read("k")
    assert begun is not None
    with closing(sqlite3.connect(str(one.store.file))) as database, database:
        database.execute(
            "UPDATE refold_receipts SET state = 'released', fence = 1" if restored else "DELETE FROM refold_receipts"
        )

    with capture_logs() as logs:
        report(one, fence)

    found = other.store.read("k")
    assert found is not None
    assert (found.state, found.fence, found.fingerprint, found.task_id) == (state, fence, begun.fingerprint, "T")
    assert [(log["event"], log["tool"]) for log in logs] == [("receipt_gone", "charge")]


def test_an_outcome_that_the_database_has_lost_is_in_doubt(two: tuple[Ledger, Ledger], clock: Clock) -> None:
    """
    Restored to a moment before the outcome, it says *executing*: the process that began the effect knows that it did.
    """
    one, _ = two
    fence = performing(begin(one))
    one.finish("k", fence, "paid")
    with closing(sqlite3.connect(str(one.store.file))) as database, database:
        database.execute("UPDATE refold_receipts SET state = 'executing', result = NULL")

    assert isinstance(begin(one), InProgress)
    clock.now += 60
    assert isinstance(begin(one), InDoubt)


def test_an_attempt_that_was_not_confirmed_was_never_begun(two: tuple[Ledger, Ledger], clock: Clock) -> None:
    """
    The database wrote it, and failed before it said so: this process begins the effect, and others wait for the lease.
    """
    one, other = two
    begin(one, "another")
    with closing(sqlite3.connect(str(one.store.file))) as database, database:
        database.execute(
            "CREATE TRIGGER fails AFTER INSERT ON refold_receipts BEGIN SELECT RAISE(FAIL, 'it was written'); END"
        )
    with pytest.raises(Exception, match="it was written"):
        begin(one)

    assert isinstance(begin(other), InProgress)
    assert begin(one) == Begun(fence=2)


def test_a_reason_that_only_looks_encrypted_is_read(ledger_file: Path) -> None:
    """
    A tool's error may begin as encrypted texts do; its key can be asked for again all the same.
    """
    ledger = Ledger(str(ledger_file))
    ledger.release("k", performing(begin(ledger)), "sealed: the envelope was not opened")

    found = ledger.look("k")
    assert found is not None
    assert found.why == "sealed: the envelope was not opened"
    assert isinstance(begin(ledger), Begun)


def test_a_result_that_cannot_be_encrypted_is_owed(ledger_file: Path) -> None:
    """
    As with a disk that is gone: the effect took place, so nobody performs it again while the keys are away.
    """
    with Ledger(str(ledger_file)) as ledger:
        ledger.store.seal = keys = KeyService()
        fence = performing(begin(ledger))
        keys.away = True

        assert ledger.finish("k", fence, "paid") == "paid"
        assert isinstance(begin(ledger), InProgress)
        keys.away = False

    other = Ledger(str(ledger_file))
    other.store.seal = KeyService()
    told = begin(other)
    assert isinstance(told, Finished)
    assert told.value == "paid"


@pytest.mark.parametrize("away", [False, True])
def test_a_result_that_is_never_encrypted_is_not_owed_for_ever(ledger_file: Path, *, away: bool) -> None:
    """
    As with one that the database refuses: who performed it has its result, and a person is asked if another needs it.
    """
    ledger = Ledger(str(ledger_file))
    ledger.store.seal = keys = KeyService()
    keys.refuses = "huge"
    with capture_logs() as logs, ledger:
        fence = performing(begin(ledger))
        keys.away = away
        assert ledger.finish("k", fence, "huge") == "huge"
        keys.away = False

    assert [log["event"] for log in logs] == [*(["receipt_owed"] if away else []), "receipt_not_written"]
    assert ledger._holds == {}
    assert ledger._pending_writes == []


def test_an_effect_whose_report_the_database_refuses_is_not_repeated(ledger_file: Path, clock: Clock) -> None:
    """
    The process that performed it knows that it did: it waits for the lease's end, and then a person is asked.
    """
    ledger = Ledger(store_of(str(ledger_file), clock=clock))
    fence = performing(begin(ledger))

    def refused(found: LedgerReceipt | None, now: float) -> LedgerReceipt | None:
        raise ValueError("no database takes this")

    ledger._end("k", fence, refused)

    assert isinstance(begin(ledger), InProgress)
    clock.now += 60
    assert isinstance(begin(ledger), InDoubt)


def test_a_newer_schema_is_left_alone(ledger_file: Path) -> None:
    """
    A worker that is behind says so, and begins nothing.
    """
    ledger = Ledger(str(ledger_file))
    begin(ledger)
    with ledger.store._engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE refold_schema SET version = {VERSION + 1}")

    with pytest.raises(LedgerUnavailable, match="a newer refold has made it"):
        begin(Ledger(str(ledger_file)), "other")


# --- settings


def test_the_file_is_private(ledger_file: Path) -> None:
    """
    Receipts hold what tools returned.
    """
    begin(Ledger(str(ledger_file)))

    assert ledger_file.stat().st_mode & 0o777 == 0o600


def test_the_file_of_the_user(tmp_path: Path) -> None:
    """
    Unset: a file of the user's own, in a folder that is made.
    """
    store = store_from_env({"XDG_DATA_HOME": str(tmp_path / "data")})
    begin(Ledger(store))

    assert store.file == tmp_path / "data" / "refold" / "ledger.db"
    assert store.file.is_file()


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("mysql://db/x", "'mysql' is not supported|no database URL"),
        ("sqlite://", "a ledger in memory is lost with its process"),
        (".", r"is a folder: name a file in it, such as .*ledger\.db"),
        ("sqlite:////tmp", "is a folder"),
        ("/dev/null", "is no regular file"),
        ("postgresql:ledger", "is followed by two slashes"),
        ("://", "no database URL"),
        ("postgresql://u:p@h:x/d", "no database URL"),
        ("postgresql://u:p@ss@h/d", "has an @; write it as %40"),
    ],
)
def test_a_setting_that_names_no_ledger(named: str, said: str) -> None:
    """
    Found when the worker is made.
    """
    with pytest.raises(DefinitionError, match=said):
        store_of(named)


def test_a_full_disk_is_told_with_what_to_do(ledger_file: Path) -> None:
    """
    A deletion needs room itself, so `refold ledger prune` alone cannot help.
    """
    ledger = Ledger(str(ledger_file))
    ledger.store.counts()
    with closing(ledger.store._connected().cursor()) as cursor:
        cursor.execute("PRAGMA max_page_count=1")  # raised to what there is already

    with pytest.raises(LedgerUnavailable, match="is full; free some megabytes there by other means"):
        ledger.begin(ledger.ask("k", "charge", {}, task_id="t" * 20_000))
    ledger.store.close()


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("localhost:7233", True),
        ("127.0.0.1:7233", True),
        ("127.9.9.9:7233", True),
        ("[::1]:7233", True),
        ("http://localhost:7233", True),
        ("temporal:7233", False),
        ("10.0.0.7:7233", False),
        ("[2001:db8::1]:7233", False),
        ("x.tmprl.cloud:7233", False),
        ("localhost.example.com:7233", False),
    ],
)
def test_a_file_is_for_one_host(ledger_file: Path, target: str, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With a server elsewhere there may be workers elsewhere, who would not see the file; unless someone says otherwise.
    """
    assert is_local(target) is local
    if local:
        Ledger().refuse_remote(target)
    else:
        with pytest.raises(DefinitionError, match="REFOLD_LEDGER_SINGLE_HOST=1"):
            Ledger().refuse_remote(target)
    Ledger(single_host=True).refuse_remote(target)
    monkeypatch.setenv("REFOLD_LEDGER_SINGLE_HOST", "1")
    Ledger().refuse_remote(target)


# --- any order of events


class Workers(RuleBasedStateMachine):
    """Workers that begin, perform, report, die and stand still in any order, and a receiver that knows fences."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.workers = [self.worker() for _ in range(3)]
        # By worker: the fence of its try, and whether it has performed it.
        self.trying: list[tuple[int, bool] | None] = [None] * 3
        self.highest = 0
        self.effects = 0

    def worker(self) -> Ledger:
        return Ledger(store_of(f"{self.folder.name}/ledger.db", clock=self.clock))

    def teardown(self) -> None:
        for worker in self.workers:
            worker.store.close()
        self.folder.cleanup()

    @rule(who=st.integers(0, 2), probed=st.booleans())
    def begins(self, who: int, probed: bool) -> None:
        ledger = self.workers[who]
        ask = ledger.ask("k", "charge", {})
        told = ledger.begin(ask)
        if isinstance(told, InDoubt) and probed:
            if self.effects:
                ledger.finish("k", told.fence, "paid")
                return
            # The probe answers NotDone, which promises that the receiver refuses every attempt begun so far.
            self.highest = max(self.highest, told.fence + 1)
            told = ledger.take_over(ask, told.fence)
        if isinstance(told, Begun):
            assert self.trying[who] is None, "one at a time in a process"
            self.trying[who] = (told.fence, False)
        elif isinstance(told, Finished):
            assert self.effects == 1
            assert told.value == "paid"

    @rule(who=st.integers(0, 2))
    def performs(self, who: int) -> None:
        if (trying := self.trying[who]) is not None and not trying[1] and trying[0] >= self.highest:
            self.highest = trying[0]
            self.effects += 1
            self.trying[who] = (trying[0], True)

    @rule(who=st.integers(0, 2), sure=st.booleans())
    def reports(self, who: int, sure: bool) -> None:
        if (trying := self.trying[who]) is None:
            return
        fence, performed = trying
        if not sure:
            self.workers[who].doubt("k", fence, "no answer came")
        elif performed:
            self.workers[who].finish("k", fence, "paid")
        else:
            self.workers[who].release("k", fence, "refused")
        self.trying[who] = None

    @rule(who=st.integers(0, 2))
    def dies(self, who: int) -> None:
        self.workers[who].store.close()
        self.workers[who] = self.worker()
        self.trying[who] = None

    @rule(seconds=st.sampled_from([1, 20, 40, -20, -4_000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @invariant()
    def it_happens_once(self) -> None:
        assert self.effects <= 1

    @invariant()
    def fences_only_rise(self) -> None:
        fences = [trying[0] for trying in self.trying if trying is not None]
        assert len(fences) == len(set(fences)), "each try has a fence of its own"


def test_once_in_any_order() -> None:
    """
    Whatever dies, stalls or asks in between: one effect, and every result handed out is its result.
    """
    run_state_machine_as_test(
        Workers,
        settings=settings(max_examples=20, stateful_step_count=25, suppress_health_check=list(HealthCheck)),
    )


LOOK = "import sqlite3; db = sqlite3.connect({file!r}); print(*[row[0] for row in db.execute({query!r})]); db.close()"


def seen_by_another_process(file: Path) -> list[str]:
    """The keys that a process finds in the file, which then closes it, as `refold ledger show` does."""
    script = LOOK.format(file=str(file), query="SELECT key FROM refold_receipts ORDER BY key")
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_what_else_uses_the_file_here_costs_no_receipt(tmp_path: Path) -> None:
    """
    A worker opens its ledger more than once: for receipts, refused updates and owners' days. Whichever opens the file
    and when, what is written afterwards is in the file for every process.

    A process that closes any descriptor of a file loses all its locks on it. Another process that closed the ledger
    then took itself for the last one, and deleted the log into which this process went on writing.
    """
    file = tmp_path / "ledger.db"
    first = Ledger(store_of(str(file)))
    first.begin(asking(first, "a"))
    for number in range(2):
        store_of(str(file)).counts()
        seen_by_another_process(file)
        first.begin(asking(first, f"b{number}"))

    assert seen_by_another_process(file) == ["a", "b0", "b1"]
