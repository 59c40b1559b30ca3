"""The receipt ledger: an effect happens once, however many calls request it and whichever worker dies.

A worker commits *executing* before an effect and *done* with the result after it. While the worker performs, a thread
renews its lease. Once a lease expires, the outcome is unknown until a probe or a person settles it. The rules are in
`receipts`, the database in `store`, and the order of steps around a tool in `ledgered_call`.

Four promises about one process:

1. One call at a time performs a key; the ledger tells the others to wait, without asking the database.
2. A report that cannot be written after an effect stays in memory and is written once the database answers again.
3. If the database did not confirm the write of an attempt, this process did not perform it; when this process finds
   that receipt, it begins the effect. An attempt that was confirmed may have had its effect, whatever the database has
   lost since.
4. A receipt that is gone while this process performs its key, as from a database that was emptied or restored from an
   older backup, is written again, with the first renewal or report after that.
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
from weakref import WeakSet

from pydantic import JsonValue

from refold.core.errors import DefinitionError, describe
from refold.effects.ledger import receipts
from refold.effects.ledger.receipts import (
    ENV,
    LEASE_S,
    Ask,
    Begun,
    Finished,
    InProgress,
    KeyReused,
    LedgerAnswer,
    LedgerReceipt,
    LedgerUnavailable,
)
from refold.effects.ledger.store import Change, Store, store_from_env, store_of
from refold.effects.ledger.thread_pool import ThreadPool
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count, level

__all__ = ["Ledger", "LedgerUnavailable", "fingerprint"]

RENEWALS_PER_LEASE = 6
RETRY_WRITES_S = 1.0
FAILURES_OF_AN_OUTAGE = 2
SINGLE_HOST_ENV = "REFOLD_LEDGER_SINGLE_HOST"

T = TypeVar("T")
log = logger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class _Hold:
    """A key that this process performs, or has performed without having written the outcome yet.

    Attributes:
        ask: What was asked for.
        fence: The attempt's number; 0 until the database has answered.
        due: When the lease thread renews next, by the monotonic clock.
        closing: The outcome is being written, so the lease thread renews no more.
        lost: Another worker has overtaken this attempt, and the log says so.
        in_thread: The effect is performed by a thread that nobody waits for, and that may outlive the ledger's users.
    """

    ask: Ask
    fence: int = 0
    due: float = field(default=float("inf"))
    closing: bool = False
    lost: bool = False
    in_thread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingWrite:
    """A report that could not be written."""

    key: str
    fence: int
    change: Change


class Ledger:
    """Performs each effect once, by receipts in a database. Thread-safe; its methods block on the disk or network.

    Attributes:
        store: The database.
    """

    def __init__(
        self, store: Store | str | None = None, *, lease_s: float | None = None, single_host: bool | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            store: The database, or its path or URL; None takes `REFOLD_LEDGER`, else a file in the user's data folder.
            lease_s: The lease of every effect, in seconds; None takes the one passed to `ask`.
            single_host: All workers run on this host, though the Temporal server does not; None takes
                `REFOLD_LEDGER_SINGLE_HOST`.

        Raises:
            DefinitionError: The setting names an unsupported database.
        """
        if isinstance(store, Store):
            self.store = store
        else:
            self.store = store_from_env() if store is None else store_of(store)
        self._holder = (0, "")
        self._lease_s = lease_s
        self._single_host = _flag(os.environ) if single_host is None else single_host
        self._begin_anew()
        _LEDGERS.add(self)

    def _begin_anew(self) -> None:
        """Perform nothing; also called in a process that was forked from this one, which has none of its threads."""
        self._changed = threading.Condition()
        self._holds: dict[str, _Hold] = {}
        self._pending_writes: list[_PendingWrite] = []
        # By key, the attempts that the database failed to confirm: if it has written one, nobody performs it.
        self._unconfirmed: dict[str, set[int]] = {}
        self._wakes_at = float("inf")
        self._users = 0
        self._stopped = True
        self._keeper: threading.Thread | None = None
        self._pool: ThreadPool | None = None

    @property
    def holder(self) -> str:
        """The name of this process on receipts; a process that was forked from this one has another."""
        made_by, name = self._holder
        if made_by != os.getpid():
            name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
            self._holder = (os.getpid(), name)
        return name

    def __enter__(self) -> Ledger:
        with self._changed:
            self._users += 1
            if self._users > 1:
                return self
            self._stopped = False
            # SQLite allows one writer at a time; more threads would only wait for each other.
            self._pool = ThreadPool(1 if self.store.one_host else 8, "refold-ledger")
            if self._keeper is None:  # else it still keeps the leases of threads that outlived the last user
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
            keeper, pool, held = self._keeper, self._pool, self._outlived()
        if pool is not None:
            pool.close()
        if keeper is not None and not held:
            keeper.join()

    def _outlived(self) -> bool:
        """Whether threads that outlived their worker still perform effects: their leases are kept until they end."""
        return any(hold.in_thread and not hold.closing for hold in self._holds.values())

    def _close(self) -> None:
        self._write_pending()
        for pending in self._pending_writes:
            log.error("receipt_not_written", key=pending.key, fence=pending.fence)
            count(metrics.LEDGER_ANSWERS, "not_written")
        self.store.close()

    def refuse_remote(self, target: str) -> None:
        """Refuse a ledger in a file of this host if workers may run on other hosts.

        Args:
            target: The Temporal server's address, `host:port`.

        Raises:
            DefinitionError: The receipts are in a file, the server is not on this host, and `single_host` is not set.
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
        """Run a blocking call in one of the ledger's threads; called on an event loop.

        Raises:
            RuntimeError: The ledger is not entered.
        """
        if self._pool is None or self._stopped:
            raise RuntimeError("this ledger is not open: use it inside `with ledger:`")
        return self._pool.run(call, *args)

    # --- for workers

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
        """The request that `begin` takes, with this process as holder; see `Ask`."""
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
        """Request an effect. After `Begun`, report by `finish`, `release` or `doubt`; until then a lease is held.

        Raises:
            LedgerUnavailable: The database cannot be used; no attempt was begun.
        """
        return self._claim(ask, lambda found, now: self._begun(found, ask, now))

    def take_over(self, ask: Ask, fence: int) -> LedgerAnswer:
        """As `begin`, after a probe has answered `NotDone` for attempt `fence`."""
        return self._claim(ask, lambda found, now: receipts.take_over(found, ask, fence, now))

    def made_elsewhere(self, ask: Ask, why: str) -> None:
        """Record that a worker with another ledger may have made an earlier attempt, whose outcome is unknown here.
        A receipt of this ledger stays, unless it is released.

        Raises:
            LedgerUnavailable: It was not recorded.
        """
        self.store.change(ask.key, lambda found, now: receipts.made_elsewhere(found, ask, why, now))

    def left_to_thread(self, key: str) -> None:
        """Report that the effect that this process performs is left to a thread, which reports its outcome itself."""
        with self._changed:
            if key in self._holds:
                self._holds[key].in_thread = True

    def finish(self, key: str, fence: int, result: JsonValue) -> JsonValue:
        """Report that attempt `fence` succeeded, however late. If the database fails, the report is written later.

        Returns:
            The recorded result, which is the first one reported; `result` if the report could not be written yet or
            another attempt has overtaken this one.
        """
        written = json.dumps(result, separators=(",", ":"))
        found = self._end(key, fence, lambda found, now: receipts.finish(found, fence, written, now))
        if found is None or found.result is None:
            return result
        kept: JsonValue = json.loads(found.result)
        return kept

    def release(self, key: str, fence: int | None = None, why: str = "") -> None:
        """Report that the effect certainly did not take place; a worker may perform it again.

        Args:
            key: The idempotency key.
            fence: The attempt, whose report is written later if the database fails; None is the latest attempt, for
                an operator.
            why: The reason, for people.

        Raises:
            LedgerUnavailable: The database cannot be used, and `fence` is None.
        """
        self._end(key, fence, lambda found, now: receipts.release(found, _newest(found, fence), why, now))

    def doubt(self, key: str, fence: int, why: str) -> None:
        """Report that the outcome of attempt `fence` is not known. If the database fails, it is written later."""
        self._end(key, fence, lambda found, now: receipts.doubt(found, fence, why, now))

    # --- for operators

    def resolve(self, ask: Ask, outcome: JsonValue) -> JsonValue | KeyReused:
        """Record the result that a person gives for an effect.

        Returns:
            The recorded result; one that was recorded before stays. `KeyReused` if the receipt is of other arguments,
            and stays as it is.

        Raises:
            LedgerUnavailable: The result was not recorded.
        """
        written = json.dumps(outcome, separators=(",", ":"))
        answer: Finished | KeyReused | None = None

        def change(found: LedgerReceipt | None, now: float) -> LedgerReceipt:
            nonlocal answer
            receipt, answer = receipts.resolve(found, ask, written, now)
            return receipt

        self.store.change(ask.key, change)
        assert answer is not None
        return answer.value if isinstance(answer, Finished) else answer

    def undone(self, key: str, by: str, result: str) -> None:
        """Record that the effect was undone, so that it may be performed again under its key.

        Args:
            key: The effect's idempotency key.
            by: The id of the compensating command; a repeated report changes nothing.
            result: The `result_hash` of the effect's recorded result; a report for another result changes nothing.

        Raises:
            LedgerUnavailable: The report was not recorded.
        """
        self.store.change(key, lambda found, now: receipts.undo(found, by, result, now))

    def look(self, key: str) -> LedgerReceipt | None:
        """The receipt of an effect; None if there is none.

        Raises:
            LedgerUnavailable: The receipt cannot be read.
        """
        return self.store.read(key)

    # --- holds

    def _begun(self, found: LedgerReceipt | None, ask: Ask, now: float) -> tuple[LedgerReceipt | None, LedgerAnswer]:
        unbegun = self._unconfirmed.get(ask.key, ())
        abandoned = found is not None and found.holder == self.holder and found.fence in unbegun
        if found is not None and not abandoned and receipts.went_back(found, now):
            log.warning("clock_went_back", key=ask.key, seconds=found.changed_at - now)
        return receipts.begin(found, ask, now, abandoned=abandoned)

    def _claim(
        self, ask: Ask, decide: Callable[[LedgerReceipt | None, float], tuple[LedgerReceipt | None, LedgerAnswer]]
    ) -> LedgerAnswer:
        hold = _Hold(ask=ask)
        with self._changed:
            if (held := self._holds.get(ask.key)) is not None:
                if held.fence and held.ask.fingerprint != ask.fingerprint:
                    return KeyReused(known=held.ask.fingerprint, given=ask.fingerprint)
                return InProgress(until=float("inf"))
            self._holds[ask.key] = hold
        answer: LedgerAnswer | None = None

        def change(found: LedgerReceipt | None, now: float) -> LedgerReceipt | None:
            nonlocal answer
            receipt, answer = decide(found, now)
            return receipt

        try:
            self.store.change(ask.key, change)
        except BaseException:
            if isinstance(answer, Begun):
                self._unconfirmed.setdefault(ask.key, set()).add(answer.fence)
            self._drop(ask.key)
            raise
        assert answer is not None
        if not isinstance(answer, Begun):
            self._drop(ask.key)
            return answer
        self._unconfirmed.pop(ask.key, None)
        with self._changed:
            hold.fence = answer.fence
            hold.due = time.monotonic() + ask.lease_s / RENEWALS_PER_LEASE
            if hold.due < self._wakes_at:  # else the thread wakes in time anyway; a wake-up costs as much as a commit
                self._changed.notify_all()
        return answer

    def _end(self, key: str, fence: int | None, change: Change) -> LedgerReceipt | None:
        with self._changed:
            hold = self._holds.get(key)
            mine = hold is not None and hold.fence == fence
            if mine and hold is not None:
                hold.closing = True
                change = _with_receipt(hold, change)
        try:
            found = self.store.change(key, change)
        except LedgerUnavailable as error:
            if fence is None:
                raise
            mine = False  # this process holds the key until the report is written
            log.warning("receipt_owed", key=key, error=str(error))
            with self._changed:
                self._pending_writes.append(_PendingWrite(key=key, fence=fence, change=change))
                self._changed.notify_all()
            count(metrics.LEDGER_ANSWERS, "owed")
            level(metrics.RECEIPTS_OWED, len(self._pending_writes))
            return None
        except Exception as error:
            if fence is None:
                raise
            self._log_refused(key, fence, error)  # not raised: what the tool did and returned stands
            return None
        finally:
            if mine:
                self._drop(key)
        if fence is not None and found is not None and found.fence > fence:
            log.error("effect_overtaken", key=key, tool=found.tool, fence=fence, newest=found.fence)
            count(metrics.LEDGER_ANSWERS, "overtaken")
            return None
        return found

    def _drop(self, key: str) -> None:
        with self._changed:
            self._holds.pop(key, None)
            if self._stopped:
                self._changed.notify_all()

    # --- the lease thread

    def _keep(self) -> None:
        retry_at = 0.0
        while True:
            with self._changed:
                if self._stopped and not self._outlived():
                    self._keeper = None
                    break
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
                    hold.due = now + hold.ask.lease_s / RENEWALS_PER_LEASE
            for key, hold in due:
                self._renew(key, hold)
            if writes_due:
                self._write_pending()
                retry_at = time.monotonic() + RETRY_WRITES_S
        self._close()

    def _renew(self, key: str, hold: _Hold) -> None:
        def change(found: LedgerReceipt | None, now: float) -> LedgerReceipt | None:
            # Asked for each receipt that is found: `_end` may have written the outcome since this renewal became due.
            if hold.closing:
                return found
            return receipts.renew(found, hold.fence, hold.ask.lease_s, now)

        try:
            found = self.store.change(key, _with_receipt(hold, change))
        except Exception as error:  # noqa: BLE001 - one lease's trouble must not stop the others' renewal
            log.warning("lease_not_renewed", key=key, error=str(error))
            return
        if found is not None and found.fence > hold.fence and not hold.lost:
            hold.lost = True
            log.error("effect_overtaken", key=key, tool=found.tool, fence=hold.fence, newest=found.fence)
            count(metrics.LEDGER_ANSWERS, "overtaken")

    def _write_pending(self) -> None:
        """Write the reports that could not be written before, until two in a row fail, as they do in an outage."""
        failures = 0
        for pending in tuple(self._pending_writes):
            written = self._written(pending)
            with self._changed:
                self._pending_writes.remove(pending)
                if not written:
                    self._pending_writes.append(pending)  # behind the others, which it must not delay
                elif (hold := self._holds.get(pending.key)) is not None and hold.fence == pending.fence:
                    del self._holds[pending.key]
            level(metrics.RECEIPTS_OWED, len(self._pending_writes))
            failures = 0 if written else failures + 1
            if failures == FAILURES_OF_AN_OUTAGE:
                return

    def _written(self, pending: _PendingWrite) -> bool:
        """Write one report, or drop it if the database refuses it. False if the database is unavailable."""
        try:
            self.store.change(pending.key, pending.change)
        except LedgerUnavailable:
            return False
        except Exception as error:  # noqa: BLE001 - it would end the thread that keeps the leases
            self._log_refused(pending.key, pending.fence, error)
        return True

    def _log_refused(self, key: str, fence: int, error: Exception) -> None:
        # The receipt says *executing* until its lease expires, and *unknown* from then on.
        log.error("receipt_not_written", key=key, fence=fence, error=describe(error))
        count(metrics.LEDGER_ANSWERS, "not_written")


_LEDGERS: WeakSet[Ledger] = WeakSet()


def _after_fork() -> None:
    for ledger in tuple(_LEDGERS):
        ledger._begin_anew()


os.register_at_fork(after_in_child=_after_fork)


def _with_receipt(hold: _Hold, change: Change) -> Change:
    """`change`, given the receipt that this process wrote when it began, where the database has lost it since."""

    def changed(found: LedgerReceipt | None, now: float) -> LedgerReceipt | None:
        if found is None or found.fence < hold.fence:
            log.error("receipt_gone", key=hold.ask.key, tool=hold.ask.tool, fence=hold.fence)
            count(metrics.LEDGER_ANSWERS, "gone")
            found = receipts.taken(hold.ask, hold.fence, now, found)
        return change(found, now)

    return changed


def fingerprint(args: Mapping[str, JsonValue]) -> str:
    """The hash of a call's arguments, as 64 hex digits; the order of the fields does not matter."""
    written = json.dumps(args, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()


def is_local(target: str) -> bool:
    """Whether an address, `host:port` or a URL, names this host by localhost or a loopback address."""
    host = target.partition("://")[2] or target
    host = host.rpartition(":")[0] if host.count(":") == 1 or "]" in host else host
    host = host.strip("[]").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _newest(found: LedgerReceipt | None, fence: int | None) -> int:
    if fence is not None:
        return fence
    return 0 if found is None else found.fence


def _flag(environ: Mapping[str, str]) -> bool:
    return environ.get(SINGLE_HOST_ENV, "").strip().lower() in ("1", "true", "yes")
