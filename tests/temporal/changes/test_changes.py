"""Every row of the table of changes, on a real server, by worker restart, by rolling deploy and by versioned deploy.

Each row in one place by restart; and in the sweep by one of the two deploys, or both where the row says something of
its own of them. Otherwise, in other places, and sealed before a restart, in the sweep, too: a fifth of those trials,
and all with REFOLD_SWEEP=all.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from temporalio.client import Client

from refold import Status
from refold.temporal import Outcome
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal.changes.rows import ROWS, Fate, Place
from tests.temporal.changes.trials import Site, Trial, restarted, rolled, sealed, versioned
from tests.temporal.upgrade.sealed_skills import paid

# Many tasks are rebuilt at once, and the SDK interrupts a thread that takes too long, wherever it stands just then.
pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAYS: dict[str, Callable[[Site, Sequence[Trial]], Coroutine[Any, Any, None]]] = {
    "restart": restarted,
    "rolling": rolled,
    "versions": versioned,
    "sealed": sealed,
}


def trials(way: str, *, sweep: bool) -> list[Trial]:
    """The trials of a way: one of each row that is tried so, in another place each time; the others are the sweep's."""
    found = []
    for number, (key, row) in enumerate(ROWS.items()):
        tried = {
            "restart": True,
            "rolling": number % 2 == 0 or row.rolled is not None,
            "versions": number % 2 == 1 or row.sealed is Fate.STILL or row.after_effect is not None,
            "sealed": False,
        }
        chosen = (number + list(WAYS).index(way)) % len(row.at) if tried[way] else -1
        found += [Trial(key, place, way) for at, place in enumerate(row.at) if (at != chosen) is sweep]
    return found[::5] if sweep and not THOROUGH else found


@pytest.fixture(scope="module")
async def client(hasty_server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """With a storage of this module's own."""
    values = Folder(tmp_path_factory.mktemp("changes"))
    return await Client.connect(
        hasty_server.address, namespace=hasty_server.namespace, data_converter=data_converter(values)
    )


@pytest.fixture(scope="module")
async def run(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callable[..., Any]]:
    """Runs all trials of a way at once, the first time that one of them is asked for; what they leave behind is
    collected at the end."""
    folder = tmp_path_factory.mktemp("code")
    found: dict[tuple[str, bool], dict[str, Trial]] = {}
    ways: list[asyncio.Future[None]] = []

    async def trial(id: str, way: str, *, sweep: bool) -> Trial:
        if (way, sweep) not in found:
            chosen = trials(way, sweep=sweep)
            site = Site(client, Folder(folder), folder, list(dict.fromkeys(one.key for one in chosen)))
            found[way, sweep] = {one.id: one for one in chosen}
            for one in chosen:
                paid.pop(one.id, None)  # a process that has done another file meanwhile runs the trials again
            ways.append(asyncio.ensure_future(WAYS[way](site, chosen)))
            await ways[-1]
        one = found[way, sweep][id]
        if one.broken is not None:
            raise one.broken
        return one

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("REFOLD_STORAGE", str(folder))
        yield trial
    for one in ways:  # after a time limit, which ends the test alone, the trials would look at their tasks all along
        one.cancel()
    await asyncio.gather(*ways, return_exceptions=True)
    gc.collect()


def each(way: str) -> pytest.MarkDecorator:
    """All trials of a way."""
    long = [pytest.mark.sweep, pytest.mark.timeout(LONG_S)]
    return pytest.mark.parametrize(
        ("id", "sweep"),
        [
            pytest.param(one.id, sweep, id=one.id, marks=long if sweep or way != "restart" else [])
            for sweep in (False, True)
            for one in trials(way, sweep=sweep)
        ],
    )


def kept(trial: Trial) -> None:
    """Nothing is lost or rewritten: what was recorded is in every later journal, and each effect happened once."""
    for one in trial.seen:
        assert one.journal is None or one.journal[: len(trial.before)] == trial.before
    assert trial.end is not None
    assert trial.end.status is Status.COMPLETED
    assert trial.journal[: len(trial.before)] == trial.before
    assert paid[trial.id] == 1


def says(trial: Trial, words: str, said: str) -> None:
    """The words are those of the row."""
    assert words.replace("trip", trial.key) in said


@each("restart")
async def test_by_restart(run: Callable[..., Any], id: str, sweep: bool) -> None:
    """
    The task goes on under the new code, or stands still and says what differs, and goes on once the old code is back.
    One that has gone on is rolled back: the same.
    """
    trial = await run(id, "restart", sweep=sweep)
    first = trial.seen[0]

    kept(trial)
    assert first.fate is trial.row.now, first.note
    says(trial, trial.row.says if first.fate is Fate.STILL else "", first.note)
    if first.fate is Fate.ON:
        assert trial.fates[1] is trial.row.back, trial.seen[1].note


@each("rolling")
async def test_by_rolling_deploy(run: Callable[..., Any], id: str, sweep: bool) -> None:
    """
    While old and new workers are there, the old ones take what the new ones cannot. Once they are gone, a task goes on
    if nothing in it differs; else it says what does, until an old worker is back.
    """
    trial = await run(id, "rolling", sweep=sweep)

    kept(trial)
    if (trial.row.rolled or trial.row.now) is Fate.STILL:
        assert trial.fates == [Fate.STILL]
        says(trial, trial.row.says, trial.seen[0].note)
    elif trial.fates == [Fate.STILL]:
        assert trial.row.back is Fate.STILL, trial.seen[0].note


@each("versions")
async def test_by_versioned_deploy(run: Callable[..., Any], id: str, sweep: bool) -> None:
    """
    A task stays on the version that began it, whatever the new code says, until `refold upgrade` moves it; one that
    cannot move is named with the reason, and goes on where it is.
    """
    trial = await run(id, "versions", sweep=sweep)

    kept(trial)
    if trial.row.sealed is Fate.STILL:
        assert trial.move.outcome is Outcome.CANNOT, trial.move
        says(trial, trial.row.unsealed, trial.move.why)
        assert trial.fates == [Fate.ON], trial.seen[0].note
    elif trial.place is Place.EFFECT:
        assert trial.move.outcome is Outcome.WAITS, trial.move
        assert trial.fates == [trial.row.after_effect or Fate.ON], trial.seen[0].note
    else:
        assert trial.move.outcome is Outcome.MOVED, trial.move
        assert trial.fates == [Fate.ON], trial.seen[0].note


@each("sealed")
async def test_sealed_before_a_restart(run: Callable[..., Any], id: str, sweep: bool) -> None:
    """
    The new code meets data: the task goes on, or stands still and says why, until the old code is back.
    """
    trial = await run(id, "sealed", sweep=sweep)
    first = trial.seen[0]

    kept(trial)
    if trial.place is not Place.EFFECT:
        assert first.fate is trial.row.sealed, first.note
