"""The verbs about what is remembered of owners, on a ledger in a file."""

import asyncio
from pathlib import Path

import pytest

from refold.effects.ledger.store import store_of
from refold.effects.memory import Memory
from refold.effects.memory.memory import scope_of
from tests.cli.conftest import Shell


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger in which Ann, Ben and nobody have facts, and Ann has a session with two turns."""
    file = tmp_path / "ledger.db"
    monkeypatch.setenv("REFOLD_LEDGER", str(file))
    for name in ("TEMPORAL_NAMESPACE", "TEMPORAL_PROFILE", "REFOLD_CODEC"):
        monkeypatch.delenv(name, raising=False)
    seconds = iter(range(60, 1_000, 60))
    store = store_of(str(file), clock=lambda: next(seconds))

    def of(owner: str, task_id: str) -> Memory:
        scope = scope_of("default", owner)
        return Memory(lambda: store, scope=scope, task_id=task_id, patiently=lambda call: call())

    async def fill() -> None:
        for owner, fact in (("ann", "likes tea"), ("ann", "lives\nin Oslo"), ("ben", "likes milk"), ("", "is shy")):
            await of(owner, "T").remember(fact)
        await of("ann", "T1").open_turn("s1", "a flood?", last=0)
        await of("ann", "T1").close_turn("s1", "two")
        await of("ann", "T2").open_turn("s1", "and fires?", last=0)

    asyncio.run(fill())
    store.close()
    return file


def said(refold: Shell, *whose: str) -> list[str]:
    """The facts that the list has."""
    return [one["said"] for one in refold("memory", "list", *whose, "--json").lines if "said" in one]


def test_what_is_remembered_of_an_owner_is_listed(refold: Shell, file: Path) -> None:
    """
    Facts newest first, then sessions; nothing of others.
    """
    lines = refold("memory", "list", "ann").out.splitlines()

    assert [line.split("  ")[-1].strip() for line in lines if "fact" not in line] == [
        "lives",
        "in Oslo",
        "likes tea",
        lines[5],
        "asked: a flood?",
        "answered: two",
        "asked: and fires?",
        "answered: -",
    ]
    assert lines[5].startswith("session ")
    assert lines[5].endswith(", 2 turns")
    assert said(refold, "ben") == ["likes milk"]
    assert said(refold, "--no-owner") == ["is shy"]


@pytest.mark.parametrize("whose", [("Ann",), ("ann ",), ("ann", "--namespace", "other"), ("%",)])
def test_nothing_is_remembered(refold: Shell, file: Path, whose: tuple[str, ...]) -> None:
    """
    Said, with the place that was looked in; owners and namespaces are matched letter by letter.
    """
    done = refold("memory", "list", *whose)
    assert (done.exit, done.out) == (0, "")
    assert done.err.startswith(f"nothing is remembered of owner {whose[0]!r} (namespace ")

    refused = refold("memory", "forget", *whose, "--all")
    assert refused.exit == 2
    assert f"nothing is remembered of owner {whose[0]!r} (namespace " in refused.err
    assert len(said(refold, "ann")) == 2


def test_one_fact_or_session_is_forgotten(refold: Shell, file: Path) -> None:
    """
    By the id of the list; a session by its own id, too. What is not there, or another owner's, is an error.
    """
    newest = refold("memory", "list", "ann", "--json").lines[0]["fact"]
    assert refold("memory", "forget", "ben", "--fact", newest).exit == 2
    done = refold("memory", "forget", "ann", "--fact", newest)
    assert done.out == "1 fact and 0 sessions of owner 'ann' (namespace 'default') deleted\n"
    assert said(refold, "ann") == ["likes tea"]
    assert f"there is no fact {newest!r} of owner 'ann'" in refold("memory", "forget", "ann", "--fact", newest).err

    assert "there is no session 's2'" in refold("memory", "forget", "ann", "--session", "s2").err
    assert refold("memory", "forget", "ann", "--session", "s1", "--json").json == {"facts": 0, "sessions": 1}
    assert said(refold, "ann") == ["likes tea"]
    assert refold("memory", "forget", "ann", "--session", "s1").exit == 2


def test_an_owner_is_forgotten(refold: Shell, file: Path) -> None:
    """
    With all facts and sessions; others stay.
    """
    assert refold("memory", "forget", "ann", "--all", "--json").json == {"facts": 2, "sessions": 1}
    assert refold("memory", "list", "ann").out == ""
    assert [said(refold, "ben"), said(refold, "--no-owner")] == [["likes milk"], ["is shy"]]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        pytest.param(("list",), "name the owner, or give --no-owner", id="nobody"),
        pytest.param(("list", "ann", "--no-owner"), "not both", id="both"),
        pytest.param(("list", ""), "'OWNER': it is empty", id="an empty name"),
        pytest.param(("forget", "ann"), "say what to forget", id="nothing"),
        pytest.param(("forget", "ann", "--all", "--fact", "a"), "one of them", id="two things"),
        pytest.param(("forget", "--all"), "name the owner", id="everybody"),
        pytest.param(("forget", "ann", "--fact", " "), "there is no fact ' '", id="any fact"),
        pytest.param(("forget", "ann", "--session", " "), "there is no session ' '", id="any session"),
    ],
)
def test_nothing_is_forgotten_by_mistake(refold: Shell, file: Path, words: tuple[str, ...], problem: str) -> None:
    """
    Who and what are named, always.
    """
    done = refold("memory", *words)

    assert (done.exit, problem in done.err) == (2, True)
    assert len(said(refold, "ann")) == 2


def test_another_database_is_named(refold: Shell, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A ledger that cannot be opened is an error, not an empty memory.
    """
    monkeypatch.setenv("REFOLD_LEDGER", str(file.parent / "none" / "ledger.db"))

    assert refold("memory", "list", "ann").exit == 2
