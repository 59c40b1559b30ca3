"""What a purge leaves whole: tasks whose values cannot go yet, and receipts that a recovered task still needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refold.effects.ledger.receipts import LedgerUnavailable
from refold.engine import OffspringView
from refold.temporal.client import lineage
from refold.temporal.data.payloads import PartsCodec
from refold.temporal.data.storage import WRITTEN_LATELY, Folder, key_of
from refold.temporal.keeping import purge as purging
from refold.temporal.keeping.purge import Left, Purge, Purged, _Ended
from refold.temporal.keeping.references import References

OLD, NEW = sorted((b"one", b"other"), key=lambda data: hashlib.sha256(data).hexdigest())
"""Two values; the old one is removed first."""


class Receipts:
    """A ledger that says why it was told to keep a task's receipts."""

    place = "ledger"

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def purge(self, task_id: str, *, kept: str, dry: bool) -> tuple[dict[str, int], Sequence[tuple[str, str]]]:
        """See `ReceiptsOfTask`."""
        self.kept[task_id] = kept
        return {}, ()


class Ended(Purge):
    """A purge of tasks that have ended, without a server.

    Args:
        values: Where their values are.
        tasks: The values that each task refers to.
    """

    def __init__(self, values: Folder, tasks: Mapping[str, set[str]], receipts: Receipts | None = None) -> None:
        config = SimpleNamespace(target_host="here")
        client = SimpleNamespace(
            namespace="default",
            service_client=SimpleNamespace(config=config),
            data_converter=SimpleNamespace(payload_codec=PartsCodec(values)),
        )
        connection: Any = SimpleNamespace(client=client)
        super().__init__(connection, receipts)
        self.tasks = tasks
        self.deleted: list[str] = []

    async def _ended(self, task_id: str, ended_before: datetime | None) -> tuple[list[_Ended], Left | None]:
        parts = sorted((one for one in self.tasks if one.startswith(f"{task_id}/")), key=len, reverse=True)
        found = [
            _Ended(task_id=one, of=task_id, runs=["run"], webhooks=[], refers=References(shared=self.tasks[one]))
            for one in (*parts, task_id)
        ]
        failed = task_id.rpartition(".r")[0]
        found[-1].recovers = failed if failed in self.tasks.keys() - set(self.deleted) else ""
        return found, None

    async def _not_allowed(self) -> Left | None:
        return None

    async def _delete(self, id: str, run_id: str) -> None:
        self.deleted.append(id)


@pytest.fixture(autouse=True)
def offspring(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[OffspringView]]:
    """The tasks that go on from others; no other workflow refers to a value."""
    found: dict[str, list[OffspringView]] = {}

    async def of(connection: object, task_id: str) -> tuple[OffspringView, ...]:
        return tuple(found.get(task_id, ()))

    async def no_more(connection: object, task_id: str) -> list[OffspringView]:
        return []

    async def nowhere(client: object, wanted: set[str], purged: set[str]) -> dict[str, str]:
        return {}

    monkeypatch.setattr(lineage, "offspring", of)
    monkeypatch.setattr(lineage, "recoveries", no_more)
    monkeypatch.setattr(purging, "used_elsewhere", nowhere)
    return found


async def purged(purge: Purge, *task_ids: str) -> dict[str, Purged]:
    return {one.task_id: one async for one in purge.run(task_ids, dry=False)}


async def put(values: Folder) -> tuple[str, str]:
    """The keys of the two values."""
    old, new = key_of(OLD), key_of(NEW)
    await values.put(old, OLD)
    await values.put(new, NEW)
    file = values.path / old[:2] / old
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 3600))
    return old, new


async def test_a_task_that_waits_for_one_value_keeps_all_and_its_parts(tmp_path: Path) -> None:
    """
    The task stays whole, so it can be read, recovered and purged as before.
    """
    values = Folder(tmp_path)
    old, new = await put(values)
    purge = Ended(values, {"T": {old, new}, "T/1.1": {old}})

    [waits] = (await purged(purge, "T")).values()

    assert (waits.task_id, waits.gone) == ("T", False)
    assert [(one.what, one.why) for one in waits.left] == [(f"value {new}", WRITTEN_LATELY)]
    assert (await values.get(old), await values.get(new)) == (OLD, NEW)
    assert purge.deleted == []


async def test_a_value_of_a_task_that_waits_stays_when_another_one_goes(tmp_path: Path) -> None:
    """
    As a value of any other task that stays.
    """
    values = Folder(tmp_path)
    old, new = await put(values)
    purge = Ended(values, {"A": {old}, "B": {old, new}})

    done = await purged(purge, "A", "B")

    assert (done["A"].gone, done["B"].gone, purge.deleted) == (True, False, ["A"])
    assert [one.why for one in done["A"].left] == ["an equal value belongs to 'B'"]
    assert await values.get(old) == OLD


async def test_receipts_stay_for_a_task_that_was_recovered_from_a_recovered_one(
    tmp_path: Path, offspring: dict[str, list[OffspringView]]
) -> None:
    """
    A command that was open when the first task failed keeps its id in all tasks that recover it, one after another.
    """
    offspring["T"] = [
        OffspringView(task_id="T.f1", how="forked", seq=1),
        OffspringView(task_id="T.r1", how="recovered", seq=3),
    ]
    offspring["T.r1"] = [OffspringView(task_id="T.r1.r1", how="recovered", seq=5)]
    offspring["T.f1"] = [OffspringView(task_id="T.f1.r1", how="recovered", seq=5)]
    receipts = Receipts()
    purge = Ended(Folder(tmp_path), {"T": set(), "T.r1": set(), "T.f1": set()}, receipts)

    await purged(purge, "T", "T.r1", "T.f1")

    assert {one for one in receipts.kept if one.startswith("T")} == {"T", "T.r1", "T.f1"}
    assert ["'T.r1.r1' was recovered" in receipts.kept[one] for one in ("T", "T.r1")] == [True, True]
    assert "'T.f1.r1' was recovered" in receipts.kept["T.f1"]


async def test_a_task_that_recovers_another_stays_as_long_as_that_one(tmp_path: Path) -> None:
    """
    Without it, nobody could tell that the failed task was recovered, and what the recovered task did would be repeated.
    """
    values = Folder(tmp_path)
    _, new = await put(values)
    purge = Ended(values, {"T": {new}, "T.r1": set(), "T.r1/1.1": set(), "T.r1.r1": set()})

    alone = await purged(purge, "T.r1.r1", "T.r1")
    with_one_that_waits = await purged(purge, "T.r1", "T")

    for done in (alone, with_one_that_waits):
        assert "it goes on for 'T', which could be recovered once more" in done["T.r1"].left[0].why
        assert not any(one.gone for one in done.values())
    assert purge.deleted == []

    purge.tasks["T"].clear()
    assert all(one.gone for one in (await purged(purge, "T.r1.r1", "T.r1", "T")).values())
    assert sorted(purge.deleted) == ["T", "T.r1", "T.r1.r1", "T.r1/1.1"]


async def test_a_part_that_is_named_beside_its_task_is_reported_once(tmp_path: Path) -> None:
    """
    It goes with its task.
    """
    purge = Ended(Folder(tmp_path), {"T": set(), "T/1.1": set()})

    reports = [one.task_id async for one in purge.run(["T/1.1", "T"], dry=False)]

    assert sorted(reports) == sorted(purge.deleted) == ["T", "T/1.1"]


async def test_a_ledger_that_deletes_nothing_keeps_all(tmp_path: Path) -> None:
    """
    It is away, or its role may not delete: that is found out before a value is gone.
    """

    class Refusing(Receipts):
        async def purge(self, task_id: str, *, kept: str, dry: bool) -> Any:
            raise LedgerUnavailable("db", "permission denied for table refold_receipts")

    values = Folder(tmp_path)
    old, _ = await put(values)
    purge = Ended(values, {"T": {old}}, Refusing())

    with pytest.raises(LedgerUnavailable, match="permission denied"):
        await purged(purge, "T")
    assert await values.get(old) == OLD
    assert purge.deleted == []
