"""Deletes what the ledger's database holds of a purged task: its refused updates, and its receipts but for those that
still guard against a second effect."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from refold.effects.http.keys import key_of_call
from refold.effects.ledger.receipts import LedgerReceipt, ReceiptState
from refold.effects.ledger.refused_table import RefusedTable
from refold.effects.ledger.store import Store
from refold.effects.short.outcomes import RECORD


class PurgedReceipts:
    """Implements `refold.temporal.keeping.purge.ReceiptsOfTask` over a ledger's database.

    Attributes:
        place: The file or database.
    """

    def __init__(self, store: Store, namespace: str) -> None:
        """Over a database; `namespace` is Temporal's, which keys depend on."""
        self.store = store
        self.namespace = namespace
        self.place = store.place

    async def purge(self, task_id: str, *, kept: str, dry: bool) -> tuple[dict[str, int], Sequence[tuple[str, str]]]:
        """See `ReceiptsOfTask`. Raises `LedgerUnavailable` if they cannot be read or deleted."""
        # In a thread without a loop, since the codec that opens a receipt runs one.
        return await asyncio.to_thread(self._purge, task_id, kept, dry)

    def _purge(self, task_id: str, kept: str, dry: bool) -> tuple[dict[str, int], list[tuple[str, str]]]:
        delete: list[str] = []
        stay: list[tuple[str, str]] = []
        for one in self.store.of_task(task_id):
            if why := kept or self._needed(one):
                stay.append((f"receipt of {one.tool} ({one.invocation_id}, {one.state})", why))
            else:
                delete.append(one.key)
        if not dry:
            self.store.remove(delete)
        return {"receipts": len(delete), "refusals": RefusedTable(self.store).forget(task_id, dry=dry)}, stay

    def _needed(self, one: LedgerReceipt) -> str:
        """Why a receipt stays; empty if it need not."""
        if one.state not in (ReceiptState.DONE, ReceiptState.RELEASED):
            return "nobody knows yet whether its effect took place"
        if one.undone:
            return "its effect was undone, and the count is part of the key that the receiver gets"
        if one.tool != RECORD and one.key != key_of_call(self.namespace, one.tool, None, one.invocation_id, owner=None):
            return (
                "it has a business key: without it, another task that uses the key would repeat the effect; "
                "`refold ledger prune` deletes it by its age"
            )
        return ""
