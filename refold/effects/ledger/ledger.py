"""The receipt ledger: what makes an effect happen once, however many ask for it and whichever worker dies.

A worker writes *executing* before an effect and *done* with the result after it, each on the disk before it goes on.
While it performs, a thread extends its lease; a worker that has fallen silent for a lease leaves a doubt that only a
probe or a person can settle. `receipts` beside this module has the rules, `store` the database, and `ledgered_call` the
order of things around a tool.

Three promises about one process:

1. A key is performed once at a time; whoever else asks is told to wait, without a look at the database.
2. What cannot be written after an effect is kept and written as soon as the ledger answers again.
3. A receipt that names this process as its performer while it performs nothing of the kind was never begun: that
   happens when the database went away between the write and its confirmation.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import structlog
from pydantic import JsonValue

from refold.core.errors import DefinitionError
from refold.effects.ledger import receipts
from refold.effects.ledger.receipts import (
    LEASE_S,
    Ask,
    InProgress,
    LedgerAnswer,
    LedgerUnavailable,
    Perform,
    Receipt,
)
from refold.effects.ledger.store import ENV, Store, store_from_env, store_of
from refold.effects.ledger.thread_pool import ThreadPool

__all__ = ["Ledger", "LedgerUnavailable", "fingerprint"]

RENEWALS_PER_LEASE = 6
RETRY_WRITES_S = 1.0
SINGLE_HOST_ENV = "REFOLD_LEDGER_SINGLE_HOST"

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class _Hold:
    """An effect that this process performs, or has performed and not written down yet.

    Attributes:
        fence: 0 until it is known.
        closing: Its end is being written: from here on nothing renews it.
    """

    lease_s: float
    fence: int = 0
    due: float = field(default=float("inf"))
    closing: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingWrite:
    """What could not be written."""

    key: str
    fence: int
    change: Callable[[Receipt | None, float], Receipt | None]


class Ledger:
    """Receipts of effects, and this process's part in them. Any thread may call it; a call may wait for the disk.

    Attributes:
        holder: This process, as receipts name it.
        store: Where the receipts lie.
    """

    def __init__(
        self, store: Store | str | None = None, *, lease_s: float | None = None, single_host: bool | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            store: Where receipts lie, or its path or URL; None takes `REFOLD_LEDGER`, else a file of the user's own.
            lease_s: How long a silent worker is believed to be at work, in seconds; None leaves it to who asks.
            single_host: All workers run on this host, though the Temporal server does not; None takes
                `REFOLD_LEDGER_SINGLE_HOST`.

        Raises:
            DefinitionError: The setting names no database that is supported.
        """
        if isinstance(store, Store):
            self.store = store
        else:
            self.store = store_from_env() if store is None else store_of(store)
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._lease_s = lease_s
        self._single_host = _flag(os.environ) if single_host is None else single_host
        self._changed = threading.Condition()
        self._holds: dict[str, _Hold] = {}
        self._pending_writes: list[_PendingWrite] = []
        self._wakes_at = float("inf")
        self._users = 0
        self._stopped = True
        self._keeper: threading.Thread | None = None
        self._pool: ThreadPool | None = None

    def __enter__(self) -> Ledger:
        with self._changed:
            self._users += 1
            if self._users > 1:
                return self
            self._stopped = False
            # One writer at a time is all that SQLite has; more threads would only wait for each other.
            self._pool = ThreadPool(1 if self.store.one_host else 8, "refold-ledger")
            self._keeper = threading.Thread(target=self._keep, name="refold-leases", daemon=True)
            self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._users -= 1
            if self._users:
                return
            self._stopped = True
            self._changed.notify_all()
            keeper, pool = self._keeper, self._pool
        if keeper is not None:
            keeper.join()
        if pool is not None:
            pool.close()
        self._write_pending()
        for pending in self._pending_writes:
            log.error("receipt_not_written", key=pending.key, fence=pending.fence)
        self.store.close()

    def refuse_remote(self, target: str) -> None:
        """Refuse a file of one host where workers of other hosts may take part.

        Args:
            target: The Temporal server's address, `host:port`.

        Raises:
            DefinitionError: The receipts are in a file, the server is not on this host, and nobody has said that all
                workers are.
        """
        if self._single_host or not self.store.one_host or is_local(target):
            return
        found = (
            f"the receipts lie in {self.store.place}, which only the workers of this host see, but the Temporal server "
            f"is {target}: a worker on another host would perform effects again; let {ENV} name a PostgreSQL database, "
            f"or set {SINGLE_HOST_ENV}=1 if all workers run on this host"
        )
        raise DefinitionError(ENV, [found], what="ledger")

    def run(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Make a call in a thread of the ledger's; from an event loop.

        Raises:
            RuntimeError: The ledger is not entered.
        """
        if self._pool is None or self._stopped:
            raise RuntimeError("this ledger is not open: use it inside `with ledger:`")
        return self._pool.run(call, *args)

    # --- for whoever performs effects

    def ask(
        self,
        key: str,
        tool: str,
        args: Mapping[str, JsonValue],
        *,
        lease_s: float = LEASE_S,
        task_id: str = "",
        invocation_id: str = "",
        decided: int = 0,
    ) -> Ask:
        """The question that `begin` takes; see `Ask`."""
        return Ask(
            key=key,
            tool=tool,
            fingerprint=fingerprint(args),
            holder=self.holder,
            lease_s=self._lease_s or lease_s,
            task_id=task_id,
            invocation_id=invocation_id,
            decided=decided,
        )

    def begin(self, ask: Ask) -> LedgerAnswer:
        """Ask for an effect. After `Perform`, end it by `finish`, `release` or `doubt`; until then its lease is kept.

        Raises:
            LedgerUnavailable: Nothing was begun.
        """
        return self._claim(ask, lambda found, now: self._begun(found, ask, now))

    def take_over(self, ask: Ask, fence: int) -> LedgerAnswer:
        """As `begin`, when a probe has said that try number `fence` surely did not take place."""
        return self._claim(ask, lambda found, now: receipts.take_over(found, ask, fence, now))

    def finish(self, key: str, fence: int, result: JsonValue) -> JsonValue:
        """The effect took place, just now or long ago. Where the ledger does not answer it is written later.

        Returns:
            The result that counts: the first one that was written.
        """
        written = json.dumps(result, separators=(",", ":"))
        found = self._end(key, fence, lambda found, now: receipts.finish(found, fence, written, now))
        if found is None or found.result is None:
            return result
        kept: JsonValue = json.loads(found.result)
        return kept

    def release(self, key: str, fence: int | None = None, why: str = "") -> None:
        """The effect surely did not take place; it may be performed again.

        Args:
            fence: Which try; None is the newest, for an operator.
        """
        self._end(key, fence, lambda found, now: receipts.release(found, _newest(found, fence), why, now))

    def doubt(self, key: str, fence: int, why: str) -> None:
        """Whoever performed the effect cannot tell whether it took place."""
        self._end(key, fence, lambda found, now: receipts.doubt(found, fence, why, now))

    # --- for operators

    def resolve(self, ask: Ask, outcome: JsonValue) -> JsonValue:
        """A person says that the effect took place, and what it gave.

        Returns:
            The result that counts: one that is known already stays.

        Raises:
            LedgerUnavailable: It is not written.
        """
        written = json.dumps(outcome, separators=(",", ":"))
        found = self.store.change(ask.key, lambda found, now: receipts.resolve(found, ask, written, now))
        kept: JsonValue = json.loads(written if found is None or found.result is None else found.result)
        return kept

    def undone(self, key: str, by: str, result: str) -> None:
        """The effect was undone, and may be performed again under its key.

        Args:
            by: The command that undid it; telling it twice is telling it once.
            result: What the effect had come to, by `result_hash`.

        Raises:
            LedgerUnavailable: It is not written.
        """
        self.store.change(key, lambda found, now: receipts.undo(found, by, result, now))

    def look(self, key: str) -> Receipt | None:
        """What is known about an effect.

        Raises:
            LedgerUnavailable: It cannot be read.
        """
        return self.store.read(key)

    # --- holds

    def _begun(self, found: Receipt | None, ask: Ask, now: float) -> tuple[Receipt | None, LedgerAnswer]:
        # Whoever comes here has the only hold of this key in this process: nobody is at it.
        return receipts.begin(found, ask, now, abandoned=found is not None and found.holder == self.holder)

    def _claim(
        self, ask: Ask, decide: Callable[[Receipt | None, float], tuple[Receipt | None, LedgerAnswer]]
    ) -> LedgerAnswer:
        hold = _Hold(lease_s=ask.lease_s)
        with self._changed:
            if ask.key in self._holds:
                return InProgress(until=float("inf"))
            self._holds[ask.key] = hold
        answer: LedgerAnswer | None = None

        def change(found: Receipt | None, now: float) -> Receipt | None:
            nonlocal answer
            receipt, answer = decide(found, now)
            return receipt

        try:
            self.store.change(ask.key, change)
        except BaseException:
            self._drop(ask.key)
            raise
        assert answer is not None
        if not isinstance(answer, Perform):
            self._drop(ask.key)
            return answer
        with self._changed:
            hold.fence = answer.fence
            hold.due = time.monotonic() + ask.lease_s / RENEWALS_PER_LEASE
            if hold.due < self._wakes_at:  # else it comes in time by itself: to wake it costs as much as a commit
                self._changed.notify_all()
        return answer

    def _end(
        self, key: str, fence: int | None, change: Callable[[Receipt | None, float], Receipt | None]
    ) -> Receipt | None:
        with self._changed:
            hold = self._holds.get(key)
            mine = hold is not None and hold.fence == fence
            if mine and hold is not None:
                hold.closing = True
        try:
            found = self.store.change(key, change)
        except LedgerUnavailable as error:
            if fence is None:
                raise
            log.warning("receipt_owed", key=key, error=str(error))
            with self._changed:
                self._pending_writes.append(_PendingWrite(key=key, fence=fence, change=change))
                self._changed.notify_all()
            return None
        if mine:
            self._drop(key)
        if fence is not None and found is not None and found.fence > fence:
            log.error("effect_overtaken", key=key, tool=found.tool, fence=fence, newest=found.fence)
            return None
        return found

    def _drop(self, key: str) -> None:
        with self._changed:
            self._holds.pop(key, None)

    # --- the keeper's thread

    def _keep(self) -> None:
        retry_at = 0.0
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = time.monotonic()
                due = [(key, hold) for key, hold in self._holds.items() if hold.due <= now and not hold.closing]
                writes_due = bool(self._pending_writes) and retry_at <= now
                if not due and not writes_due:
                    waits = [hold.due for hold in self._holds.values() if not hold.closing]
                    next_at = min([*waits, *([retry_at] if self._pending_writes else [])], default=float("inf"))
                    self._wakes_at = next_at
                    self._changed.wait(None if next_at == float("inf") else max(0.0, next_at - now))
                    continue
                for _, hold in due:
                    hold.due = now + hold.lease_s / RENEWALS_PER_LEASE
            for key, hold in due:
                self._renew(key, hold)
            if writes_due:
                self._write_pending()
                retry_at = time.monotonic() + RETRY_WRITES_S

    def _renew(self, key: str, hold: _Hold) -> None:
        def change(found: Receipt | None, now: float) -> Receipt | None:
            # Asked while the receipt is locked: its end may have been written since this renewal became due.
            if hold.closing:
                return found
            return receipts.renew(found, hold.fence, hold.lease_s, now)

        try:
            found = self.store.change(key, change)
        except Exception as error:  # noqa: BLE001 - one lease's trouble must not stop the others' renewal
            log.warning("lease_not_renewed", key=key, error=str(error))
            return
        if found is not None and found.fence > hold.fence and not hold.lost:
            hold.lost = True
            log.error("effect_overtaken", key=key, tool=found.tool, fence=hold.fence, newest=found.fence)

    def _write_pending(self) -> None:
        """Write what could not be written before, oldest first, until the ledger does not answer."""
        while self._pending_writes:
            pending = self._pending_writes[0]
            try:
                self.store.change(pending.key, pending.change)
            except LedgerUnavailable:
                return
            with self._changed:
                self._pending_writes.remove(pending)
                hold = self._holds.get(pending.key)
                if hold is not None and hold.fence == pending.fence:
                    del self._holds[pending.key]


def fingerprint(args: Mapping[str, JsonValue]) -> str:
    """What tells arguments from others: 64 hex digits, the same whatever the order of the fields."""
    written = json.dumps(args, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()


def is_local(target: str) -> bool:
    """Whether an address, `host:port` or a URL, is this host's own."""
    host = target.partition("://")[2] or target
    host = host.rpartition(":")[0] if host.count(":") == 1 or "]" in host else host
    host = host.strip("[]").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _newest(found: Receipt | None, fence: int | None) -> int:
    if fence is not None:
        return fence
    return 0 if found is None else found.fence


def _flag(environ: Mapping[str, str]) -> bool:
    return environ.get(SINGLE_HOST_ENV, "").strip().lower() in ("1", "true", "yes")
