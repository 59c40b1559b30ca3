"""Which receipts of a purged task go, and which still guard against a second effect."""

from __future__ import annotations

from pathlib import Path

from refold.effects.http.keys import key_of_call
from refold.effects.ledger.ledger import Ledger
from refold.effects.ledger.purging import PurgedReceipts
from refold.effects.ledger.receipts import LedgerReceipt, ReceiptState
from refold.effects.ledger.refused import Refusal
from refold.effects.ledger.refused_table import RefusedTable
from refold.effects.ledger.store import Store, store_of
from refold.effects.short.outcomes import Outcomes


def receipt(
    id: str, *, key: str | None = None, state: ReceiptState = ReceiptState.DONE, undone: int = 0
) -> LedgerReceipt:
    own = key_of_call("default", "pay", key, id, owner="olga")
    return LedgerReceipt(
        key=own, tool="pay", fingerprint="f", state=state, fence=1, lease_until=0.0, holder="h", result='"paid"',
        why="", task_id="t1", invocation_id=id, began_at=float(id[-1]), changed_at=0.0, undone=undone,
    )  # fmt: skip


def add(store: Store, one: LedgerReceipt) -> None:
    store.change(one.key, lambda _found, _now: one)


def kept(store: Store) -> list[str]:
    return [one.invocation_id for one in store.of_task("t1")]


async def test_receipts_that_guard_nothing_go(tmp_path: Path) -> None:
    """
    A business key, an unknown or running effect, and an undone one keep theirs; a dry purge only counts.
    """
    store = store_of(str(tmp_path / "ledger.db"))
    for one in (
        receipt("t1/1.1"),
        receipt("t1/1.2", state=ReceiptState.RELEASED),
        receipt("t1/1.3", key="refund:A1"),
        receipt("t1/1.4", state=ReceiptState.UNKNOWN),
        receipt("t1/1.5", state=ReceiptState.EXECUTING),
        receipt("t1/1.6", undone=1),
    ):
        add(store, one)
    purging = PurgedReceipts(store, "default")

    dry, _ = await purging.purge("t1", kept="", dry=True)
    assert (dry["receipts"], len(kept(store))) == (2, 6)
    count, stay = await purging.purge("t1", kept="", dry=False)

    assert count["receipts"] == 2
    assert kept(store) == ["t1/1.3", "t1/1.4", "t1/1.5", "t1/1.6"]
    assert [why.split(":")[0].split(",")[0] for _, why in stay] == [
        "it has a business key",
        "nobody knows yet whether its effect took place",
        "nobody knows yet whether its effect took place",
        "its effect was undone",
    ]
    assert await purging.purge("t2", kept="", dry=False) == ({"receipts": 0, "refusals": 0}, [])


async def test_receipts_of_a_recovered_task_stay(tmp_path: Path) -> None:
    """
    The task that goes on keeps the ids of its effects, and so needs their receipts.
    """
    store = store_of(str(tmp_path / "ledger.db"))
    one = receipt("t1/1.1")
    add(store, one)

    count, stay = await PurgedReceipts(store, "default").purge("t1", kept="t1.r1 goes on", dry=False)

    assert (count["receipts"], [why for _, why in stay]) == (0, ["t1.r1 goes on"])
    assert kept(store) == ["t1/1.1"]


async def test_records_of_effects_within_workflow_tasks_go(tmp_path: Path) -> None:
    """
    They hold what models and tools answered, belong to one run, and guard against nothing once it has ended.
    """
    ledger = Ledger(str(tmp_path / "ledger.db"))
    outcomes = Outcomes(ledger)
    outcomes.record(outcomes.asked("refold.llm", b"{}", "default", "run-1", "t1", "t1/1.0"), "what the model said")
    assert kept(ledger.store) == ["t1/1.0"]

    assert await PurgedReceipts(ledger.store, "default").purge("t1", kept="", dry=False) == (
        {"receipts": 1, "refusals": 0},
        [],
    )
    assert kept(ledger.store) == []


async def test_the_refused_updates_of_the_task_go(tmp_path: Path) -> None:
    """
    They name who sent them; those of other tasks stay. A dry purge only counts.
    """
    store = store_of(str(tmp_path / "ledger.db"))
    table = RefusedTable(store)
    for task_id, by in (("t1", "ada"), ("t1", "eve"), ("t2", "eve")):
        table.add([Refusal(task_id=task_id, trigger="update decide", by=by, reason="no", first_at=1.0, last_at=1.0)])
    purging = PurgedReceipts(store, "default")

    dry = await purging.purge("t1", kept="", dry=True)
    assert (dry, len(table.newest())) == (({"receipts": 0, "refusals": 2}, []), 3)
    done = await purging.purge("t1", kept="t1.r1 goes on", dry=False)

    assert done == dry
    assert [one.task_id for one in table.newest()] == ["t2"]
