"""A worker's identity at the server: one of its own, with the mark of its ledger (`refold.effects.ledger.mark`)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from temporalio.service import RPCError
from temporalio.worker import Worker, WorkerConfig

from refold.effects.ledger.mark import mark_in, marked
from refold.effects.ledger.receipts import LedgerUnavailable
from refold.temporal.client.fleet.polling import ACTIVITIES, polls_of

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger

_workers = count(1)  # of this process


def identify(config: WorkerConfig, ledger: str | None) -> str:
    """Set and return a worker's identity: the program's, else one that no other worker of this process has; with the
    mark of its ledger.

    Args:
        config: The worker's; changed in place.
        ledger: The id of the ledger of its receipts; None if it has none.
    """
    if (identity := config.get("identity")) is None:
        process, at, host = config["client"].identity.rpartition("@")
        # The first keeps the SDK's, since history holds it three times a step.
        number = next(_workers)
        identity = f"{process}-{number}{at}{host}" if number > 1 else config["client"].identity
    config["identity"] = identity = identity if ledger is None else marked(identity, ledger)
    return identity


async def with_another_ledger(worker: Worker, ledger: Ledger | None) -> list[str]:
    """The identities of the workers that poll for the same effects and have another ledger; empty if none is known.

    Args:
        worker: Of this process; it runs.
        ledger: Its ledger.
    """
    if ledger is None:
        return []
    try:
        polls = await polls_of(worker.client, worker.task_queue, ACTIVITIES)
        marks = {mark_in(one.identity) for one in polls.recent()} - {""}
        others = {mark for mark in marks if not await ledger.run(ledger.store.is_marked, mark)}
    except (RPCError, LedgerUnavailable, RuntimeError):  # RuntimeError: the worker has ended, and closed its ledger
        return []
    return sorted({one.identity for one in polls.recent() if mark_in(one.identity) in others})
