"""The engine for tests says what the one on Temporal says: what passes with it does not fail in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from temporalio.client import Client

from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal import parity_skills
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.parity import (
    STARTS,
    Both,
    Op,
    ask,
    broken,
    by_chance,
    cancel,
    decide,
    fork,
    passes,
    recover,
    release,
    resolve,
    send,
    start,
)

QUEUE = "parity"
AT_ONCE = 8
SEEDS = 400 if THOROUGH else 20


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where this module's worker keeps its receipts, and the key that it checks signatures with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_LEDGER", str(tmp_path_factory.mktemp("ledger") / "ledger.db"))
        patch.setenv("REFOLD_APPROVAL_KEY", "key-of-the-tests")
        yield


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder, setting: None) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker for these skills; what ended in it is replayed at the end."""
    plugin = RefoldPlugin([parity_skills], parity_skills.TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


SCRIPTS: dict[str, list[Op]] = {
    **{f"a tool fails by {why}": [start("p_fetches", why)] for why in ("404", "misfit", "a bug")},
    **{
        f"a delayed start does not fit: {by.name}": [
            start("p_gates", "no limits", start_delay=timedelta(seconds=1_000), owner="ada"),
            ask("look"),
            ask("record"),
            by,
            ask("record"),
            ask("past"),
            ask("at", 1),
            send("yes"),
            release(),
            cancel(),
            recover(),
            fork(1),
            fork(5),
            ask("explain", "draft"),
            ask("watch", follow=True),
            start("p_gates", {}),
            ask("record"),
        ]
        for by in (passes(1_100), release(), send("yes"), decide("one"), resolve(retry=True), cancel())
    },
    "deliveries are repeated": [
        start("p_rejects", "go", delivery_id="d0"),
        send("more", "said", delivery_id="d0"),
        send("fail", "said", delivery_id="d1"),
        send("fail", "said", delivery_id="d1"),
        send("else", delivery_id="d1"),
        send("go", delivery_id="d0"),
        send("fail", "said", delivery_id="d2"),
        ask("record"),
    ],
    "deliveries are repeated while something is undone": [
        start("p_works", delivery_id="d0"),
        broken(),
        send("yes", "first", delivery_id="d1"),
        send("yes", "first", delivery_id="d1"),
        send("go", delivery_id="d0"),
        send("yes", "last", delivery_id="d2"),
    ],
    "names are too long": [
        *(start("p_asks", "go", **{name: "x" * 5_001}) for name in ("owner", "context", "started_by", "delivery_id")),
        start("p_asks", "go", owner="x" * 5_000),
        send([1], "sizes", sender="x" * 5_001),
        send([1], "sizes", delivery_id="x" * 1_001),
        send([1], "sizes", delivery_id="é" * 501),
        send([1], "sizes", delivery_id="é" * 500),
    ],
    "a decision has its time": [start("p_gates", {}), decide("one"), decide("two")],
}
"""Scripts that were answered otherwise once."""


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_script_is_answered_alike(engine: TemporalEngine, name: str) -> None:
    """
    The same answers and errors, in the same words, the same tasks and journals.
    """
    found = await Both(engine, f"alike-{list(SCRIPTS).index(name)}").play(SCRIPTS[name])

    assert not found, found


async def differences(engine: TemporalEngine, seeds: range) -> list[str]:
    """What differs in scripts by chance, for each skill, many side by side."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(skill: str, seed: int) -> str:
        async with turns:
            both = Both(engine, f"{skill}-{seed}")
            return await both.play(by_chance(both, skill, seed))

    found = await asyncio.gather(*(one(skill, seed) for seed in seeds for skill in STARTS))
    return [text for text in found if text]


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_any_script_is_answered_alike(engine: TemporalEngine) -> None:
    """
    Whatever is done, in whatever order: the same answers and errors, in the same words, the same tasks and journals.
    """
    found = await differences(engine, range(SEEDS))

    assert not found, "\n\n".join(found)
