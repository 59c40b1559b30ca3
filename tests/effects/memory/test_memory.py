"""Sessions and facts in the database: each owner's own, written once, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from refold.effects import Never
from refold.effects.ledger.store import Store, store_of
from refold.effects.ledger.tables import is_there
from refold.effects.memory import Memory, Turn, held
from refold.effects.memory.memory import ranked
from refold.effects.memory.tables import FACTS, TURNS
from refold.temporal.data.codec import CodecSeal
from refold.temporal.encryption import Encryption
from tests.services.postgres import Postgres, postgres


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server for this file."""
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.fault)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A database of this test's own."""
    if request.param == "sqlite":
        store = store_of(str(tmp_path / "memory.db"))
    else:
        store = store_of(request.getfixturevalue("server").another(f"m{uuid4().hex[:12]}"))
    yield store
    store.close()


def memory(store: Store, owner: str | None = "ann", task_id: str = "T") -> Memory:
    """What one call of a task sees."""
    return Memory(lambda: store, scope=owner, task_id=task_id, patiently=lambda call: call())


async def test_a_session_goes_on_over_tasks(store: Store) -> None:
    """
    A repeated call opens no second turn and closes none twice; the newest turns come, newest last.
    """
    told: list[Turn] = []
    for number in range(4):
        for _ in range(2):
            told = await memory(store, task_id=f"T{number}").open_turn("s1", f"question {number}", last=2)
        for said in ("answer", "another"):
            await memory(store, task_id=f"T{number}").close_turn("s1", f"{said} {number}")

    assert told == [Turn(asked=f"question {one}", answered=f"answer {one}") for one in (1, 2)]


async def test_a_recovered_task_closes_the_turn_that_is_open(store: Store) -> None:
    """
    Its own id is another one than that of the task that opened the turn.
    """
    await memory(store, task_id="T").open_turn("s1", "why?", last=0)
    await memory(store, task_id="T.r1").close_turn("s1", "because")

    assert await memory(store, task_id="U").open_turn("s1", "and?", last=5) == [Turn(asked="why?", answered="because")]


@pytest.mark.parametrize("task_id", ["T.r1", "T.r1.r2", "T.r1/2.1", "S", "S.f1"])
async def test_no_task_answers_the_question_of_another_one(store: Store, task_id: str) -> None:
    """
    A task that recovers one that failed, or whose turn was forgotten: the turn opened meanwhile waits for its own task.
    """
    await memory(store, task_id="T").open_turn("s1", "why?", last=0)
    await memory(store, task_id="U").open_turn("s1", "and?", last=0)
    await memory(store, task_id=task_id).close_turn("s1", "because")
    await memory(store, task_id="U").close_turn("s1", "so")

    told = await memory(store, task_id="V").open_turn("s1", "then?", last=5)
    because = "because" if task_id in ("T.r1", "T.r1.r2") else None
    assert told == [Turn(asked="why?", answered=because), Turn(asked="and?", answered="so")]


@pytest.mark.parametrize("first", ["the task", "its fork"])
@pytest.mark.parametrize("fork", ["T.f1", "T.r1.f1", "T.f0a1b2c3d.r1", "T.f1.f2.r1"])
async def test_a_live_fork_has_a_turn_of_its_own(store: Store, fork: str, first: str) -> None:
    """
    Whichever of the two answers first: the other task's turn keeps the other task's answer.
    """
    await memory(store, task_id="T").open_turn("s1", "why?", last=0)
    await memory(store, task_id="U").open_turn("s1", "and?", last=0)
    answers = [("T", "because"), (fork, "who knows")]
    for task_id, answered in answers if first == "the task" else answers[::-1]:
        for _ in range(2):
            await memory(store, task_id=task_id).close_turn("s1", answered)

    assert await memory(store, task_id="V").open_turn("s1", "then?", last=5) == [
        Turn(asked="why?", answered="because"),
        Turn(asked="and?"),
        Turn(asked="why?", answered="who knows"),
    ]


async def test_tasks_that_recover_a_fork_answer_its_turn(store: Store) -> None:
    """
    Once, whether the fork opened it or the first of them to answer did; a turn that was forgotten, or that no id leads
    to, is not answered.
    """
    await memory(store, task_id="T").open_turn("s1", "why?", last=0)
    await memory(store, task_id="T.f2").open_turn("s1", "why not?", last=0)
    for task_id in ("T.f2.r1", "T.f1.r1", "T.f1.r2", "S.f1", "again"):
        await memory(store, task_id=task_id).close_turn("s1", f"{task_id}'s")

    assert await memory(store, task_id="V").open_turn("s1", "then?", last=5) == [
        Turn(asked="why?"),
        Turn(asked="why not?", answered="T.f2.r1's"),
        Turn(asked="why?", answered="T.f1.r1's"),
    ]


@pytest.mark.parametrize("id", ["s1", "' OR 1=1 --", "a/b%2F?#", "ä\ud800", "x" * 100_000, "\0"])
async def test_equal_ids_of_two_owners_are_two_sessions(store: Store, id: str) -> None:
    """
    Whatever is in them.
    """
    await memory(store, "ann").open_turn(id, "Ann's", last=5)

    assert await memory(store, "ben", "U").open_turn(id, "Ben's", last=5) == []
    assert await memory(store, "ann", "V").open_turn(id, "more", last=5) == [Turn(asked="Ann's")]


async def test_facts_are_their_owners(store: Store) -> None:
    """
    And found by the words that they share with the query; the same fact is kept once.
    """
    for fact in ("Likes green tea.", "Lives in Oslo.", "Likes green tea."):
        await memory(store, "ann").remember(fact)
    await memory(store, "ben").remember("Hates tea.")

    assert await memory(store, "ann").recall("TEA?") == ["Likes green tea."]
    assert await memory(store, "ben").recall("tea") == ["Hates tea."]
    assert await memory(store, "ann").recall("") == ["Lives in Oslo.", "Likes green tea."]
    assert await memory(store, "eve").recall("tea") == []
    assert await memory(store, "ann").recall("tea", limit=-1) == []


async def test_the_oldest_facts_are_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Those of the same owner only.
    """
    monkeypatch.setattr("refold.effects.memory.tables.SEARCHED", 3)
    await memory(store, "ben").remember("Ben's.")
    for number in range(5):
        await memory(store, "ann").remember(f"fact {number}")

    assert await memory(store, "ann").recall("fact") == ["fact 4", "fact 3", "fact 2"]
    assert await memory(store, "ben").recall("") == ["Ben's."]


async def test_a_fact_is_the_newest_though_the_clock_went_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Else it would be dropped as the oldest one where an owner has as many as are kept, though the tool said that it is
    remembered.
    """
    monkeypatch.setattr("refold.effects.memory.tables.SEARCHED", 3)
    times = iter([1000.0, 1001.0, 1002.0, 900.0, 901.0])
    clocked = store_of(str(tmp_path / "memory.db"), clock=lambda: next(times))
    for number in range(5):
        await memory(clocked).remember(f"fact {number}")

    assert await memory(clocked).recall("fact") == ["fact 4", "fact 3", "fact 2"]
    clocked.close()


async def test_what_a_database_cannot_hold(store: Store) -> None:
    """
    Is stored as the sign for it, and stands in nobody's way.
    """
    await memory(store).remember("green\0 tea \ud800")
    await memory(store).open_turn("s1", "\0", last=1)
    await memory(store).close_turn("s1", "\ud800")

    assert await memory(store).recall("tea") == ["green\ufffd tea ?"]
    assert await memory(store, task_id="U").open_turn("s1", "x", last=1) == [Turn(asked="\ufffd", answered="?")]


async def test_many_tasks_of_one_session_at_once(store: Store) -> None:
    """
    Each has a turn of its own, and sees those before it.
    """
    told = await asyncio.gather(*(memory(store, task_id=f"T{n}").open_turn("s1", f"q{n}", 100) for n in range(12)))

    assert sorted(map(len, told)) == list(range(12))


def test_most_shared_words_first() -> None:
    """
    Then the newest; words only, not what they mean.
    """
    facts = ["tea is green", "green tea in Oslo", "a car"]

    assert ranked(facts, "green tea, Oslo") == ["green tea in Oslo", "tea is green"]
    assert ranked(facts, "vehicle") == []
    assert ranked(["cafe\u0301 at nine"], "CAFÉ") == ["cafe\u0301 at nine"]
    assert ranked(["\u2102at"], "cat") == ["\u2102at"]  # a double-struck capital
    assert ranked(["हिन्दी", "हवा"], "हिन्दी") == ["हिन्दी"]
    assert ranked(facts, "?!") == facts


@pytest.mark.parametrize("fact", ["", "  ", "x" * 4_001])
async def test_what_is_no_fact(store: Store, fact: str) -> None:
    """
    Is refused with its bounds.
    """
    with pytest.raises(Never, match="a fact has 1 to 4,000 characters"):
        await memory(store).remember(fact)


async def test_nobodys_memory(store: Store) -> None:
    """
    A worker that was not told whose call it is reads and writes nothing; a session needs an id.
    """
    with pytest.raises(Never, match="the worker does not know whose memory this is"):
        await memory(store, None).recall("tea")
    with pytest.raises(Never, match="a session's id is a text that is not empty"):
        await memory(store).open_turn(" ", "x", last=1)


async def test_encrypted_where_receipts_are(store: Store) -> None:
    """
    The file has no word of what was said.
    """

    class Reversed:
        def sealed(self, text: str) -> str:
            return text[::-1]

        def opened(self, sealed: str) -> str:
            return sealed[::-1]

    store.seal = Reversed()
    await memory(store).remember("Likes marzipan.")
    await memory(store).open_turn("s1", "Why marzipan?", last=1)
    await memory(store).close_turn("s1", "For marzipan's sake.")

    assert await memory(store).recall("marzipan") == ["Likes marzipan."]
    if store.file is None:
        return
    written = b"".join(file.read_bytes() for file in Path(str(store.file)).parent.iterdir())
    assert b"marzipan" not in written


@pytest.mark.parametrize("said", ["sealed: the box", "sealed:", "sealed:plain:tea", "sealed:plain:"])
async def test_what_only_looks_encrypted_is_read(store: Store, said: str) -> None:
    """
    A user may say what encrypted texts begin with: it is remembered as any other words, and hides no other fact.
    """
    await memory(store).remember("Likes tea.")
    await memory(store).remember(said)
    await memory(store).open_turn("s1", said, last=1)
    store.seal = CodecSeal(Encryption({"k": bytes(32)}))

    assert sorted(await memory(store).recall("")) == ["Likes tea.", said]
    assert await memory(store, task_id="U").open_turn("s1", "x", last=1) == [Turn(asked=said)]


async def test_reading_makes_no_table(store: Store) -> None:
    """
    Whoever may only read can look into a memory that nobody has used; there is nothing to recall or to delete.
    """
    assert await memory(store).recall("") == []
    assert held.held(store, "ann") == held.Held(facts=[], sessions={})
    with pytest.raises(held.NotRemembered, match="there is no session 's1'"):
        held.forget_session(store, "ann", "s1")
    with pytest.raises(held.NotRemembered, match="nothing is remembered"):
        held.forget_all(store, "ann")

    assert not store.within(lambda connection: any(is_there(connection, one) for one in (FACTS, TURNS)))
