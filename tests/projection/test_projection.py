"""The two tables have each transition once, whatever happens to who writes them; and hooks hear of each, in order."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import operator
import re
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refold import Content, Ctx, TaskState, Transition, flow_skill, step
from refold.core.errors import DefinitionError, InputRejected, RefoldError
from refold.core.events import DependencyResolved
from refold.core.fold.journal import Entry
from refold.engine import Listed, NotConnected, NoWorker, Place, RunGone, TaskFilter, TaskNotFound
from refold.projection import Projection, ProjectionUnavailable, Projector, TransitionRow
from refold.projection.project import ALL_S, LATE_S, QUIET_S, SOON_S
from refold.projection.tables import Emptied, Gap
from refold.task_lifecycle import TaskLifecycle
from refold.task_store import SqlitePersistence
from refold.temporal.dev import dev_server
from refold.testing import FakeEngine, transient
from tests.cli.conftest import Shell
from tests.faults.processes import until


@flow_skill(id="errand")
class Errand:
    """Asks a person, then calls a tool."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask, and call."""
        await ctx.ask("sure", "Sure?")
        return ctx.complete(await ctx.tool("fetch"))


def engine_with(*tasks: str, fetch: Any = None) -> FakeEngine:
    """An engine in which these tasks wait for an answer; unless told, the first call of the tool comes too early."""
    engine = FakeEngine([Errand], answers={"fetch": fetch or [transient("busy"), "done"]})
    for task in tasks:
        asyncio.run(engine.start("errand", Content.from_text("SECRET"), task_id=task))
    return engine


def answer(engine: FakeEngine, task: str) -> None:
    asyncio.run(engine.send(task, Content.from_text("yes")))
    engine.clock.advance(10)
    asyncio.run(engine.settle())


def used_again(answered: bool) -> tuple[FakeEngine, FakeEngine]:
    """Engines with a task `t` that was answered, and an hour later with another one of this id."""
    earlier, later = engine_with("t"), engine_with()
    answer(earlier, "t")
    later.clock.advance(3600)
    asyncio.run(later.start("errand", Content.from_text("SECRET"), task_id="t"))
    if answered:
        answer(later, "t")
    return earlier, later


def rows(file: Path, table: str) -> list[dict[str, Any]]:
    """A table as anyone reads it."""
    with closing(sqlite3.connect(file)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(f"SELECT * FROM {table} ORDER BY 1")]


def moves(projection: Projection, task: str) -> list[str]:
    """The states that a task has moved to, by the table."""
    mine = [json.loads(line) for line in projection.dump() if '"to_state"' in line]
    ordered = sorted(
        (one for one in mine if one["task_id"] == task), key=lambda one: json.loads(one["metadata"])["number"]
    )
    return [one["to_state"] for one in ordered]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def test_the_tables_have_what_the_journals_have(file: Path) -> None:
    """
    With the columns of the source; nothing of what was said.
    """
    engine = engine_with("t1", "t2")
    projection = Projection(str(file))
    projector = Projector(engine, projection)
    first = asyncio.run(projector.once())
    answer(engine, "t1")
    second = asyncio.run(projector.once())
    nothing = asyncio.run(projector.once())
    tasks, made = rows(file, "task_checkpoints"), rows(file, "state_transitions")

    assert (first.tasks, second.tasks, nothing.tasks) == (2, 1, 0)
    assert [(one["task_id"], one["state"], one["retry_count"]) for one in tasks] == [
        ("t1", "done", 1),
        ("t2", "paused", 0),
    ]
    assert moves(projection, "t1") == ["running", "paused", "running", "retrying", "running", "done"]
    assert list(tasks[0]) == ["task_id", "state", "retry_count", "checkpoint_data", "updated_at"]
    assert list(made[0]) == ["id", "task_id", "from_state", "to_state", "event", "timestamp", "metadata"]
    assert json.loads(tasks[0]["checkpoint_data"])["effects"] == {"t1/2.1": "ok"}
    assert "SECRET" not in "".join(projection.dump())


def test_no_table_limits_a_task_id(file: Path) -> None:
    """
    The id of a part of a part may have 950 characters; PostgreSQL refuses a text that is longer than its column.
    """
    Projection(str(file)).clear()
    with closing(sqlite3.connect(file)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        types = {
            table: kind
            for table in tables
            for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})")
            if name == "task_id"
        }

    assert types == dict.fromkeys(tables, "TEXT")


def test_dropped_and_rebuilt_it_is_the_same(file: Path, tmp_path: Path) -> None:
    """
    Byte by byte: written as it happened, emptied and made anew, or made in another file at once.
    """
    engine = engine_with("t1", "t2", "t3")
    projection, other = Projection(str(file)), Projection(str(tmp_path / "other.db"))
    for task in ("t3", "t1"):
        asyncio.run(Projector(engine, projection).once())
        answer(engine, task)
    asyncio.run(engine.cancel("t2", reason="no"))
    asyncio.run(Projector(engine, projection).once())
    as_it_happened = [*projection.dump()]
    projection.clear()
    emptied = [*projection.dump()]
    asyncio.run(Projector(engine, projection).once())
    asyncio.run(Projector(engine, other).once())

    assert emptied == []
    assert as_it_happened == [*projection.dump()] == [*other.dump()]
    assert moves(projection, "t2")[-1] == "failed"


def long_journal(length: int) -> list[Entry]:
    """A journal of so many entries, each with a move there and back."""
    start, *_ = engine_entries()
    there, back = engine_entries()[1:3]
    made = [start]
    return made + [(there if seq % 2 == 0 else back).model_copy(update={"seq": seq}) for seq in range(2, length + 1)]


def engine_entries() -> list[Entry]:
    engine = engine_with("t")
    answer(engine, "t")

    async def read() -> list[Entry]:
        return [entry async for entry in engine.journal("t")]

    return asyncio.run(read())


def _write(file: str, entries: list[str]) -> None:
    projection, known = Projection(file), [Entry.model_validate_json(one) for one in entries]
    while (at := projection.row("t").seq) < len(known):
        projection.take("t", "errand", known[at : at + 1])


def test_tables_of_any_size_are_dumped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Some rows at a time, each in a transaction of its own: what is deleted meanwhile is left out.
    """
    projection = Projection(str(file))
    for task_id in ("a", "b", "c"):
        projection.take(task_id, "errand", long_journal(1))
    whole = [*projection.dump()]
    monkeypatch.setattr("refold.projection.tables._AT_ONCE", 1)

    assert [*projection.dump()] == whole
    lines = projection.dump()
    first = next(lines)
    projection.forget(projection.row("c"))
    assert [first, *lines] == [line for line in whole if '"c"' not in line]


@pytest.mark.fault
async def test_killed_at_any_moment_nothing_is_missing_or_twice(file: Path) -> None:
    """
    Two processes write the same journal, and are killed in the middle, twice.
    """
    entries = await asyncio.to_thread(long_journal, 1000)
    texts = [one.model_dump_json() for one in entries]
    projection = Projection(str(file))
    context = multiprocessing.get_context("spawn")

    async def written() -> int:
        return (await asyncio.to_thread(projection.row, "t")).seq

    for _ in range(2):
        writers = [context.Process(target=_write, args=(str(file), texts), daemon=True) for _ in range(2)]
        enough = min(await written() + 20, len(entries))  # the first two may have been done before they were killed
        for one in writers:
            one.start()
        await until(written, partial(operator.le, enough))
        for one in writers:
            one.kill()
            one.join()
    half = await written()
    projection.take("t", "errand", entries)
    killed = [*projection.dump()]
    projection.clear()
    projection.take("t", "errand", entries)

    assert half > 0
    assert killed == [*projection.dump()]
    assert await written() == 1000


def test_a_gap_is_refused(file: Path) -> None:
    """
    Entries that come too early change nothing.
    """
    entries = engine_entries()
    projection = Projection(str(file))
    projection.take("t", "errand", entries[:2])
    before = [*projection.dump()]

    with pytest.raises(Gap, match="projected up to entry 2; entry 4 came next"):
        projection.take("t", "errand", entries[3:])
    assert before == [*projection.dump()]


def test_entries_are_not_written_after_tables_that_somebody_emptied(file: Path) -> None:
    """
    A second process begins anew while the first has read on: no row begins in the middle.
    """
    entries = engine_entries()
    projection = Projection(str(file))
    seq = projection.take("t", "errand", entries[:2]).seq
    projection.clear()

    with pytest.raises(Emptied, match="emptied while task 't' was read"):
        projection.take("t", "errand", entries[2:], after=seq)
    assert [*projection.dump()] == []


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_is_written_no_more(file: Path, tmp_path: Path, *, replaced: bool) -> None:
    """
    What would be written nobody could read. A projection that begins anew makes the tables anew.
    """
    entries = engine_entries()
    projection = Projection(str(file))
    projection.take("t", "errand", entries[:2])
    file.unlink()
    if replaced:
        Projection(str(tmp_path / "backup.db")).take("t", "errand", entries[:1])
        (tmp_path / "backup.db").rename(file)

    with pytest.raises(ProjectionUnavailable, match="removed or replaced while this process wrote to it"):
        projection.take("t", "errand", entries[2:])
    projection.close()
    assert Projection(str(file)).take("t", "errand", entries).seq == entries[-1].seq


class Counted:
    """An engine that counts how often journals are read, and tasks are listed."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.read: list[str] = []
        self.listed = 0

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        found = await self.engine.find(wanted, after=after, limit=limit)
        self.listed += len(found)
        return found

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        self.read.append(task_id)
        return self.engine.journal(task_id, after=after)


def test_a_round_reads_what_has_changed(file: Path) -> None:
    """
    However many tasks there are, a round without news reads no journal; open tasks are looked at ever less often, and
    ended ones never again.
    """
    names = [f"t{number}" for number in range(30)]
    engine, now = engine_with(*names, fetch="done"), 0.0
    for name in names[10:]:
        answer(engine, name)
    source = Counted(engine)
    projector = Projector(source, Projection(str(file)), clock=lambda: now)
    asyncio.run(projector.once())
    first, source.read = source.read, []
    engine.clock.advance(3600)
    asyncio.run(projector.once())
    quiet, source.read = source.read, []
    answer(engine, "t3")
    asyncio.run(projector.once())
    changed, source.read = source.read, []
    looks = []
    for _ in range(900):
        now += 2.0
        asyncio.run(projector.once())
        looks += [now] * bool(source.read)
        assert set(source.read) <= set(names[:10]) - {"t3"}
        source.read = []

    assert sorted(first) == sorted(names)
    assert (quiet, changed) == ([], ["t3"])
    assert looks == [2.0, 6.0, 14.0, 30.0, 62.0, 126.0, 254.0, 510.0, 1022.0, 1622.0]


@pytest.mark.parametrize("trouble", [NoWorker("nobody answers"), InputRejected("nobody answers")])
def test_what_cannot_be_read_is_tried_again_and_what_is_gone_is_not(file: Path, trouble: RefoldError) -> None:
    """
    A journal without a worker, or that its worker refuses, is asked for ever less often, once a minute in the end; a
    task that was deleted while it was listed is forgotten. Neither keeps the others from being written.
    """
    engine, now = engine_with("deaf", "gone", "there"), 0.0
    away: dict[str, RefoldError] = {"deaf": trouble, "gone": TaskNotFound("gone")}

    class Troubled(Counted):
        async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
            found = super().journal(task_id, after=after)
            if task_id in away:
                raise away[task_id]
            async for entry in found:
                yield entry

    source = Troubled(engine)
    projector = Projector(source, Projection(str(file)), clock=lambda: now)
    first = asyncio.run(projector.once())
    looks = []
    for _ in range(150):
        now, source.read = now + 2.0, []
        done = asyncio.run(projector.once())
        looks += [now] * ("deaf" in source.read)
        assert ("deaf" in done.unread) == ("deaf" in source.read)
        assert "gone" not in source.read
    del away["deaf"]
    now += LATE_S
    last = asyncio.run(projector.once())

    assert (first.tasks, first.unread) == (1, {"deaf": "nobody answers"})
    assert looks == [2.0, 6.0, 14.0, 30.0, 62.0, 122.0, 182.0, 242.0]
    assert (last.tasks, moves(Projection(str(file)), "deaf")) == (1, ["running", "paused"])


def test_tasks_that_nobody_serves_hold_up_no_transition(file: Path) -> None:
    """
    Each of them may cost ten seconds: they are asked once the hooks have been told what the others did, ten a round,
    and the next round goes on with those that had no turn.
    """
    names = [f"deaf{number:02d}" for number in range(25)]
    engine, now, deaf = engine_with("there", *names, fetch="done"), 0.0, False

    class Unserved(Counted):
        async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
            found = super().journal(task_id, after=after)
            if deaf and task_id in names:
                raise NoWorker("nobody answers")
            async for entry in found:
                yield entry

    def told(transition: TransitionRow) -> None:
        source.read.append(f"told of {transition.task_id}")

    source = Unserved(engine)
    projector = Projector(source, Projection(str(file)), [told], clock=lambda: now)
    asyncio.run(projector.once())
    deaf, now = True, 600.0
    answer(engine, "there")
    asked = []
    for _ in range(3):
        source.read = []
        asyncio.run(projector.once())
        asked.append([one for one in source.read if one != "there"])

    assert asked[0][0] == "told of there"
    assert [len([one for one in some if one in names]) for some in asked] == [10, 10, 5]
    assert {one for some in asked for one in some if one in names} == set(names)


def test_a_deleted_task_is_kept_in_mind_no_longer(file: Path) -> None:
    """
    Once the whole index is listed without it; a task that is listed again is read again.
    """
    engine, now = engine_with("t"), 0.0
    answer(engine, "t")
    deleted = False

    class Purged(Counted):
        async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
            return [] if deleted else await super().find(wanted, after=after, limit=limit)

    source = Purged(engine)
    projector = Projector(source, Projection(str(file)), clock=lambda: now)
    asyncio.run(projector.once())
    now, deleted = ALL_S, True
    asyncio.run(projector.once())
    now, deleted = 2 * ALL_S, False
    asyncio.run(projector.once())

    assert source.read == ["t", "t"]


def heard_anew(
    earlier: FakeEngine, later: FakeEngine, file: Path, tmp_path: Path, *, restarted: bool = False
) -> list[int]:
    """What hooks hear once another engine's tasks have the ids of those before. The tables are as if made anew."""
    heard: list[int] = []
    source = Counted(earlier)
    projection, other = Projection(str(file)), Projection(str(tmp_path / "other.db"))
    projector = Projector(source, projection, [lambda one: heard.append(one.number)])
    asyncio.run(projector.once())
    before, source.engine = len(heard), later
    if restarted:
        projector = Projector(source, projection, [lambda one: heard.append(one.number)])
    asyncio.run(projector.once())
    asyncio.run(Projector(later, other).once())

    assert [*projection.dump()] == [*other.dump()]
    return heard[before:]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("answered", [False, True])
def test_an_id_that_is_used_again_is_another_task(file: Path, tmp_path: Path, restarted: bool, answered: bool) -> None:
    """
    A task was purged, and its id names a new one: the tables have the new one, as if made anew, and hooks hear of it.
    """
    earlier, later = used_again(answered)

    assert heard_anew(earlier, later, file, tmp_path, restarted=restarted) == (
        [1, 2, 3, 4, 5, 6] if answered else [1, 2]
    )


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_an_open_task_that_was_followed_may_be_reset_or_its_id_used_again(
    file: Path, tmp_path: Path, reset: bool, ended: bool
) -> None:
    """
    The tables have the new history alone, as if made anew, and hooks hear of it from its first transition on.
    """
    earlier, later = engine_with("t"), engine_with(*["t"] * reset)
    asyncio.run(earlier.send("t", Content.from_text("yes")))
    later.clock.advance(3600)
    if not reset:
        asyncio.run(later.start("errand", Content.from_text("SECRET"), task_id="t"))
    if ended:
        answer(later, "t")

    assert heard_anew(earlier, later, file, tmp_path) == ([1, 2, 3, 4, 5, 6] if ended else [1, 2])


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_what_hooks_received_of_an_earlier_task_counts_for_no_other(file: Path, reset: bool, ended: bool) -> None:
    """
    While a hook receives the earlier task's last transition, another projector finds that the id is used again.
    """
    earlier, later = engine_with("t"), engine_with(*["t"] * reset)
    answer(earlier, "t")
    later.clock.advance(3600)
    if not reset:
        asyncio.run(later.start("errand", Content.from_text("SECRET"), task_id="t"))
    if ended:
        answer(later, "t")
    projection = Projection(str(file))
    asyncio.run(Projector(earlier, projection).once())
    (received,) = projection.untold()
    asyncio.run(Projector(later, projection).once())
    projection.told(received[-1])
    heard: list[int] = []
    asyncio.run(Projector(later, projection, [lambda one: heard.append(one.number)]).once())

    assert heard == ([1, 2, 3, 4, 5, 6] if ended else [1, 2])


def test_a_slower_projector_takes_nothing_back(file: Path) -> None:
    """
    What another has told meanwhile stays told.
    """
    projection = Projection(str(file))
    asyncio.run(Projector(engine_with("t"), projection).once())
    (made,) = projection.untold()
    projection.told(made[1])
    projection.told(made[0])

    assert projection.untold() == []


@pytest.mark.parametrize("answered", [False, True])
def test_two_that_find_an_id_used_again_write_the_new_task_once(file: Path, tmp_path: Path, answered: bool) -> None:
    """
    The slower one has read the earlier task's row before the other one wrote the new task, and takes nothing of that
    back: neither its rows, though the slower one is killed before it writes any, nor what hooks have received.
    """
    earlier, later = used_again(answered)
    heard: list[int] = []
    projection, other = Projection(str(file)), Projection(str(tmp_path / "other.db"))
    asyncio.run(Projector(earlier, projection, [lambda one: heard.append(one.number)]).once())
    heard.clear()
    faster = Projector(later, Projection(str(file)), [lambda one: heard.append(one.number)])

    class Slower(Counted):
        async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
            if self.read:
                raise KeyboardInterrupt
            self.read.append(task_id)
            await faster.once()
            async for entry in self.engine.journal(task_id, after=after):
                yield entry

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(Projector(Slower(later), projection).once())
    asyncio.run(faster.once())
    asyncio.run(Projector(later, other).once())

    assert [*projection.dump()] == [*other.dump()]
    assert heard == ([1, 2, 3, 4, 5, 6] if answered else [1, 2])


@pytest.mark.parametrize("trouble", [NoWorker("nobody answers"), NotConnected("nobody answers")])
@pytest.mark.parametrize("restarted", [False, True])
def test_an_id_that_is_used_again_is_found_out_once_its_journal_is_read(
    file: Path, tmp_path: Path, trouble: RefoldError, restarted: bool
) -> None:
    """
    While the new task's journal cannot be read, nobody knows whether it is another one: the next round asks again.
    """
    earlier, later, now = engine_with("t"), engine_with(), 0.0
    answer(earlier, "t")
    later.clock.advance(3600)
    asyncio.run(later.start("errand", Content.from_text("SECRET"), task_id="t"))
    away: list[RefoldError] = []

    class Troubled(Counted):
        async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
            if away:
                raise away[0]
            async for entry in super().journal(task_id, after=after):
                yield entry

    source = Troubled(earlier)
    projection, other = Projection(str(file)), Projection(str(tmp_path / "other.db"))
    projector = Projector(source, projection, clock=lambda: now)
    asyncio.run(projector.once())
    source.engine = later
    if restarted:
        projector = Projector(source, projection, clock=lambda: now)
    away.append(trouble)
    first = asyncio.run(projector.once())
    away.clear()
    now += LATE_S
    asyncio.run(projector.once())
    asyncio.run(Projector(later, other).once())

    assert first.unread == {"t": "nobody answers"}
    assert [*projection.dump()] == [*other.dump()]


@pytest.mark.parametrize("ended", [False, True])
def test_a_task_whose_earlier_entries_are_gone_goes_on(file: Path, ended: bool) -> None:
    """
    They are projected, and a projector that starts anew needs none of them.
    """
    engine = engine_with("t")
    if ended:
        answer(engine, "t")
    projection = Projection(str(file))
    asyncio.run(Projector(engine, projection).once())
    [row] = rows(file, "task_checkpoints")
    kept = json.loads(row["checkpoint_data"])["seq"]
    if not ended:
        answer(engine, "t")

    class Lost(Counted):
        async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
            if after < kept:
                raise RunGone("the storage lacks them")
            async for entry in super().journal(task_id, after=after):
                yield entry

    done = asyncio.run(Projector(Lost(engine), projection).once())

    assert done.unread == {}
    assert moves(projection, "t")[-1] == "done"


def test_a_journal_with_a_gap_holds_up_no_other(file: Path) -> None:
    """
    Its task is named as one that cannot be read, and the round goes on.
    """
    engine = engine_with("gap", "there", fetch="done")
    projection = Projection(str(file))
    asyncio.run(Projector(engine, projection).once())
    for task in ("gap", "there"):
        answer(engine, task)

    class Gapped(Counted):
        async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
            async for entry in super().journal(task_id, after=after):
                if task_id != "gap" or entry.seq != 2:
                    yield entry

    done = asyncio.run(Projector(Gapped(engine), projection).once())

    said = "task 'gap' is projected up to entry 1; entry 3 came next: `refold project --rebuild` makes the tables anew"
    assert done.unread == {"gap": said}
    assert moves(projection, "there")[-1] == "done"


def test_a_task_whose_rows_the_database_refuses_holds_up_no_other(file: Path) -> None:
    """
    It is named with what the database said, and tried again; hooks hear of the others meanwhile.
    """
    engine, now = engine_with("odd", "there"), 0.0
    heard: list[str] = []
    projection = Projection(str(file))
    projector = Projector(engine, projection, [lambda one: heard.append(one.task_id)], clock=lambda: now)
    projection.clear()
    with closing(sqlite3.connect(file)) as db:
        db.execute(
            "CREATE TRIGGER refuses BEFORE INSERT ON task_checkpoints WHEN NEW.task_id = 'odd' "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
        first = asyncio.run(projector.once())
        db.execute("DROP TRIGGER refuses")
    now += LATE_S
    last = asyncio.run(projector.once())

    assert [*first.unread] == ["odd"]
    assert re.search(r"tasks\.db refuses a row: not this one; remove what refuses it", first.unread["odd"])
    assert (first.tasks, last.tasks, last.unread) == (1, 1, {})
    assert heard == ["there", "there", "odd", "odd"]


def test_a_quiet_round_lists_little(file: Path) -> None:
    """
    The whole index is listed once in ten minutes, in between what has changed of late.
    """
    engine, now = engine_with("old"), 0.0
    engine.clock.advance(3600)
    asyncio.run(engine.start("errand", Content.from_text("x"), task_id="new"))
    source = Counted(engine)
    projector = Projector(source, Projection(str(file)), clock=lambda: now)
    listed = []
    for seconds in (0.0, 2.0, 4.0, ALL_S):
        now, source.listed = seconds, 0
        asyncio.run(projector.once())
        listed.append(source.listed)

    assert listed == [2, 1, 1, 2]


def test_a_task_that_a_clock_ahead_has_started_holds_up_no_other(file: Path) -> None:
    """
    A client writes when it starts a task, and its clock may be wrong: changes of others are seen in the next round.
    """
    engine, ahead = engine_with(), datetime.now(UTC) + timedelta(hours=1)
    engine.clock.advance((datetime.now(UTC) - engine.clock.now).total_seconds())
    for task_id in ("ahead", "t"):
        asyncio.run(engine.start("errand", Content.from_text("x"), task_id=task_id))

    class Ahead(Counted):
        async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
            found = await super().find(TaskFilter(), limit=limit)
            shown = [one.model_copy(update={"moved_at": ahead}) if one.task_id == "ahead" else one for one in found]
            return [one for one in shown if wanted.moved_since is None or one.moved_at >= wanted.moved_since]

    projection = Projection(str(file))
    projector = Projector(Ahead(engine), projection, clock=lambda: 0.0)
    asyncio.run(projector.once())
    answer(engine, "t")
    asyncio.run(projector.once())

    assert moves(projection, "t")[-1] == "done"


def test_entries_that_move_no_task_come_in_the_end(file: Path) -> None:
    """
    A refusal changes nothing that is listed; the tables have it once the task is looked at, as if made anew.
    """
    engine, now = engine_with("t"), 0.0

    class Unmoved(Counted):
        async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
            found = await super().find(wanted, after=after, limit=limit)
            return [one.model_copy(update={"moved_at": datetime(2026, 1, 1, tzinfo=UTC)}) for one in found]

    projection = Projection(str(file))
    projector = Projector(Unmoved(engine), projection, clock=lambda: now)
    asyncio.run(projector.once())
    asyncio.run(engine.signal("t", DependencyResolved(retry=True)))
    asyncio.run(projector.once())
    before = projection.row("t").seq
    now += QUIET_S
    asyncio.run(projector.once())

    assert projection.row("t").seq == before + 1


def test_hooks_hear_of_each_transition_in_order(file: Path) -> None:
    """
    At least once: one that raises hears of the same again, and nothing after it before; others' tasks do not wait.
    """
    engine = engine_with("t1", "t2")
    heard: list[tuple[str, int]] = []
    troubled = {("t1", 2): 2}

    async def hook(one: TransitionRow) -> None:
        if troubled.get((one.task_id, one.number), 0):
            troubled[one.task_id, one.number] -= 1
            raise RuntimeError("no network")
        heard.append((one.task_id, one.number))

    projector = Projector(engine, Projection(str(file)), [hook])
    asyncio.run(projector.once())
    at_first = list(heard)
    answer(engine, "t1")
    for _ in range(3):
        asyncio.run(projector.once())

    assert at_first == [("t1", 1), ("t2", 1), ("t2", 2)]
    assert heard[3:] == [("t1", 2), ("t1", 3), ("t1", 4), ("t1", 5), ("t1", 6)]


def test_a_hook_that_fails_is_called_once_a_round(file: Path) -> None:
    """
    A round tells hooks twice: also after it has read the open tasks that are listed as before.
    """
    called, now = [], [0.0]

    def hook(one: TransitionRow) -> None:
        called.append(one.number)
        raise RuntimeError("down")

    projector = Projector(engine_with("t1"), Projection(str(file)), [hook], clock=lambda: now[0])
    for round_ in range(1, 4):
        asyncio.run(projector.once())
        assert called == [1] * round_
        now[0] += 10 * SOON_S


def test_hooks_that_fail_for_many_tasks_hold_up_no_other(file: Path) -> None:
    """
    However many tasks have a transition of which a hook will not hear, the others' are told in the same round.
    """
    engine = engine_with(*(f"bad{number:03d}" for number in range(230)), "zz-good")
    heard = []

    def hook(one: TransitionRow) -> None:
        if one.task_id.startswith("bad"):
            raise RuntimeError("never")
        heard.append((one.task_id, one.number))

    done = asyncio.run(Projector(engine, Projection(str(file)), [hook]).once())

    assert heard == [("zz-good", 1), ("zz-good", 2)]
    assert done.transitions == 2


@pytest.mark.parametrize(
    ("sender", "told"),
    [
        pytest.param("corp\\u0000ada", "corp\\u0000ada", id="backslash-and-digits"),
        pytest.param("corp\0ada", "corp\ufffdada", id="zero-character"),
    ],
)
def test_a_sender_may_have_any_characters(file: Path, sender: str, told: str) -> None:
    """
    A zero character, which PostgreSQL cannot store, is replaced; text that only looks like its escape stays as it is,
    and no task's hooks wait because of it.
    """
    engine = engine_with("t1", "t2")
    asyncio.run(engine.send("t1", Content.from_text("yes"), sender=sender))
    heard: list[TransitionRow] = []
    asyncio.run(Projector(engine, Projection(str(file)), [heard.append]).once())

    assert [one.by for one in heard if one.by] == [told]
    assert [one.number for one in heard if one.task_id == "t2"] == [1, 2]


def test_a_task_that_has_not_begun_has_no_row(file: Path) -> None:
    """
    The server knows a start that a skill refuses for a moment, and deletes it: a row of it would stay planned for ever,
    and would not come back when the tables are made anew. A task's row begins with its first transition.
    """
    engine, projection = engine_with(), Projection(str(file))
    asyncio.run(engine.start("errand", Content.from_text("x"), task_id="t", hold=True))
    asyncio.run(engine.signal("t", DependencyResolved(retry=True)))
    projector = Projector(engine, projection)
    asyncio.run(projector.once())
    before = [*projection.dump()]
    asyncio.run(engine.release("t"))
    asyncio.run(projector.once())

    assert before == []
    assert moves(projection, "t") == ["running", "paused"]
    assert projection.row("t").seq == 2


@pytest.mark.parametrize("columns", ["task_id VARCHAR, state VARCHAR", "id INTEGER"])
def test_tables_of_somebody_else_are_refused(file: Path, columns: str) -> None:
    """
    Tables of the same names with other columns are another program's, or another release's: they stay as they are.
    """
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"CREATE TABLE task_checkpoints ({columns})")

    with pytest.raises(DefinitionError, match=r"(?s)tasks.db.*task_checkpoints.*has no column .*retry_count"):
        Projection(str(file)).row("t")
    assert rows(file, "task_checkpoints") == []


def test_a_column_that_somebody_added_is_named(file: Path) -> None:
    """
    To remove it is enough: the rows stay.
    """
    asyncio.run(Projector(engine_with("t"), Projection(str(file))).once())
    with closing(sqlite3.connect(file)) as db:
        db.execute("ALTER TABLE task_checkpoints ADD COLUMN seen TEXT")
        with pytest.raises(
            DefinitionError, match=r"task_checkpoints .*column seen.*remove the column if somebody added"
        ):
            Projection(str(file)).row("t")
        db.execute("ALTER TABLE task_checkpoints DROP COLUMN seen")

    assert Projection(str(file)).row("t").number == 2


def test_the_store_of_lifecycles_is_refused(file: Path) -> None:
    """
    Its two tables have the projection's names and columns, and one more: emptied, it would perform effects twice.
    """
    task = TaskLifecycle("t", SqlitePersistence(file))
    task.execute_idempotent("pay", lambda key: "paid")
    projection = Projection(str(file))
    projector = Projector(engine_with("t"), projection)

    for opened in (projection.clear, partial(projection.row, "t"), lambda: asyncio.run(projector.once())):
        with pytest.raises(DefinitionError, match=r"(?s)tasks.db.*task_checkpoints .*column version.*name another"):
            opened()
    assert TaskLifecycle("t", SqlitePersistence(file)).execute_idempotent("pay", lambda key: "twice") == "paid"


async def test_the_file_of_a_development_server_is_refused(file: Path) -> None:
    """
    `refold dev --db` writes to it: each would lock the other out, and its tables are nobody's to add to.
    """
    async with dev_server(db=file):
        with pytest.raises(DefinitionError, match=r"(?s)tasks.db.*the tasks of a Temporal server.*name another file"):
            Projection(str(file)).row("t")

    with closing(sqlite3.connect(file)) as db:
        assert not db.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'refold%' OR name LIKE 'task_c%'"
        ).fetchall()


def test_a_rebuilt_table_tells_nobody_twice(file: Path) -> None:
    """
    What hooks have heard of stays told.
    """
    engine = engine_with("t1")
    heard: list[TransitionRow] = []
    projection = Projection(str(file))
    asyncio.run(Projector(engine, projection, [heard.append]).once())
    projection.clear()
    asyncio.run(Projector(engine, projection, [heard.append]).once())

    assert [one.to_state for one in heard] == [TaskState.RUNNING, TaskState.PAUSED]


@pytest.mark.parametrize("amid", [1, 2])
def test_a_table_that_is_rebuilt_while_a_hook_works_tells_nobody_twice(file: Path, amid: int) -> None:
    """
    Another process empties the tables before what the hook received is recorded.
    """
    engine = engine_with("t")
    heard: list[int] = []

    def hook(one: TransitionRow) -> None:
        heard.append(one.number)
        if len(heard) == amid:
            Projection(str(file)).clear()

    for _ in range(2):
        asyncio.run(Projector(engine, Projection(str(file)), [hook]).once())

    assert heard == [1, 2]


def test_a_table_that_was_emptied_and_not_made_anew_is_by_who_goes_on(file: Path) -> None:
    """
    A second process was to rebuild the tables, and was killed. The first one, which has written a task that has ended,
    Another process began to rebuild the tables, and was killed. This one finds out when it looks at all tasks, also for
    a task that has ended, which it reads no more; and it tells nobody twice.
    """
    engine, now = engine_with("over", "open", "later", fetch="done"), 0.0
    for task_id in ("over", "later"):
        answer(engine, task_id)
    heard: list[str] = []
    projection = Projection(str(file))
    projector = Projector(engine, projection, [lambda one: heard.append(one.task_id)], clock=lambda: now)
    asyncio.run(projector.once())
    whole, told = list(projection.dump()), len(heard)
    killed = Projection(str(file))
    killed.clear()
    asyncio.run(Projector(Only(engine, "later"), killed).once())

    now += ALL_S
    asyncio.run(projector.once())

    assert list(projection.dump()) == whole
    assert len(heard) == told


class Only(Counted):
    """An engine that lists one task."""

    def __init__(self, engine: FakeEngine, task_id: str) -> None:
        super().__init__(engine)
        self.task_id = task_id

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        found = await super().find(wanted, after=after, limit=limit)
        return [one for one in found if one.task_id == self.task_id]


@pytest.mark.parametrize("rebuilt", [False, True])
def test_what_hooks_received_of_a_removed_task_counts_for_no_other(file: Path, rebuilt: bool) -> None:
    """
    The tables are emptied while a hook receives its last transition, and then another task has its id.
    """
    earlier, later = engine_with("t"), engine_with()
    answer(earlier, "t")
    later.clock.advance(3600)
    asyncio.run(later.start("errand", Content.from_text("SECRET"), task_id="t"))
    projection = Projection(str(file))
    asyncio.run(Projector(earlier, projection).once())
    (received,) = projection.untold()
    if rebuilt:
        projection.forget(projection.row("t"))
        asyncio.run(Projector(later, projection).once())
    projection.clear()
    projection.told(received[-1])
    heard: list[int] = []
    asyncio.run(Projector(later, projection, [lambda one: heard.append(one.number)]).once())

    assert heard == [1, 2]


@pytest.mark.parametrize("answered", [False, True])
def test_a_rebuilt_table_tells_of_a_task_that_has_the_id_of_an_earlier_one(file: Path, answered: bool) -> None:
    """
    What hooks have heard of the earlier task is not of the new one, which they hear of from its first transition on.
    """
    earlier, later = used_again(answered)
    heard: list[int] = []
    projection = Projection(str(file))
    asyncio.run(Projector(earlier, projection, [lambda one: heard.append(one.number)]).once())
    before = len(heard)
    projection.clear()
    asyncio.run(Projector(later, projection, [lambda one: heard.append(one.number)]).once())

    assert heard[before:] == ([1, 2, 3, 4, 5, 6] if answered else [1, 2])


def test_transitions_that_are_gone_meanwhile_are_told_later(file: Path) -> None:
    """
    PostgreSQL shows a reader of two tables the second one as it is by then: emptied by another process, for example.
    """
    engine = engine_with("t1")
    heard: list[TransitionRow] = []
    projection = Projection(str(file))
    asyncio.run(Projector(engine, projection).once())
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DELETE FROM state_transitions")
    assert projection.untold() == []

    projection.clear()
    asyncio.run(Projector(engine, projection, [heard.append]).once())
    assert [one.to_state for one in heard] == [TaskState.RUNNING, TaskState.PAUSED]


@pytest.mark.parametrize(
    "named",
    [
        "mysql://u:hunter2@h/d",
        "postgres://u:hunter2@h/d",
        "nonsense://",
        "http://x",
        "postgresql://u:hunter2@h:x/d",
        "",
        " ",
        ".",
    ],
)
def test_another_database_is_refused(named: str) -> None:
    """
    In words, before anything is written; the words quote no password.
    """
    with pytest.raises(DefinitionError, match="name a file, or postgresql") as refused:
        Projection(named)
    assert "hunter2" not in str(refused.value)


def test_a_path_names_a_file_as_its_text_does(file: Path) -> None:
    """
    As for the store of lifecycles.
    """
    assert Projection(file).place == Projection(str(file)).place == f"the file {file}"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """
    The error names the file.
    """
    with pytest.raises(ProjectionUnavailable, match=r"no\.db"):
        Projection(str(tmp_path / "none" / "no.db")).row("t")


def test_the_command(tmp_path: Path) -> None:
    """
    `refold project --once` writes what is new; mistakes are one line.
    """
    shell, file = Shell(engine_with("t1", "t2")), tmp_path / "tasks.db"

    done = shell("project", "--db", str(file), "--once", "--json")
    again = shell("project", "--db", str(file), "--once", "--rebuild", "--json")
    wrong = shell("project", "--db", str(file), "--once", "--hook", "no_such_module:f")
    no_folder = shell("project", "--db", str(tmp_path / "none" / "x.db"), "--once")
    no_pause = shell("project", "--db", str(file), "--every", "0s")

    assert (done.json["tasks"], again.json["tasks"]) == (2, 2)
    assert (wrong.exit, no_folder.exit, no_pause.exit) == (2, 2, 2)
    assert "--every takes a time above 0" in no_pause.err
    assert "names no function" in wrong.err
    assert "x.db does not answer" in no_folder.err
