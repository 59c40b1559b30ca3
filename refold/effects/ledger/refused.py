"""Refused updates on their way to the database, where an auditor finds by whom, what, why, and how often.

A task's journal and Temporal's history have no word of an update that was refused, so that a stranger cannot fill them.
Whoever refuses never waits: a thread writes, and what waits beyond a bound is dropped and counted.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from refold.effects.ledger.receipts import storable
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count

log = logger(__name__)

PENDING = 1000
"""How many different refusals wait to be written, at most, while the database is away."""

AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The pauses after failed writes, in seconds; the last one repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Equal refusals of a task.

    Attributes:
        task_id: The task.
        trigger: What was refused: `update decide`.
        by: Who sent it, as the sender says; empty if the sender does not.
        reason: Why it was refused.
        first_at: When it was refused first, in seconds since 1970.
        last_at: When it was refused last.
        times: How often.
    """

    task_id: str
    trigger: str
    by: str
    reason: str
    first_at: float
    last_at: float
    times: int = 1

    def __post_init__(self) -> None:
        for name in ("task_id", "trigger", "by", "reason"):
            object.__setattr__(self, name, storable(getattr(self, name)))

    @property
    def digest(self) -> str:
        """Equal for equal refusals of a task."""
        return hashlib.sha256("\0".join((self.trigger, self.by, self.reason)).encode()).hexdigest()

    def and_again(self, other: Refusal) -> Refusal:
        """Both, counted together."""
        first, last = min(self.first_at, other.first_at), max(self.last_at, other.last_at)
        return replace(self, first_at=first, last_at=last, times=self.times + other.times)


class Refusals(Protocol):
    """Keeps refusals. Its methods block, and raise any exception."""

    def add(self, refusals: Sequence[Refusal]) -> None:
        """Add refusals to those that are kept: all, or none."""

    def close(self) -> None:
        """Close the connections."""


class RefusalRecord:
    """Writes refusals in a thread of its own. A context manager for each worker that uses it; the last one flushes."""

    def __init__(self, connect: Callable[[], Refusals]) -> None:
        """Open nothing yet: the database is opened at the first refusal.

        Args:
            connect: Gives the database; called in the thread.
        """
        self._connect = connect
        self._kept: Refusals | None = None
        self._changed = threading.Condition()
        self._pending: dict[tuple[str, str], Refusal] = {}
        self._dropped = 0
        self._users = 0
        self._thread: threading.Thread | None = None

    def note(self, *, task_id: str, trigger: str, by: str, reason: str, at: float) -> None:
        """Have a refusal written soon; see `Refusal`. Never waits; called in any thread."""
        refusal = Refusal(task_id=task_id, trigger=trigger, by=by, reason=reason, first_at=at, last_at=at)
        key = (refusal.task_id, refusal.digest)
        with self._changed:
            if (same := self._pending.get(key)) is not None:
                self._pending[key] = same.and_again(refusal)
            elif len(self._pending) < PENDING:
                self._pending[key] = refusal
            else:
                self._dropped += 1
            self._changed.notify()

    def __enter__(self) -> RefusalRecord:
        with self._changed:
            self._users += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="refold-refusals", daemon=True)
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._users -= 1
            thread, last = self._thread, self._users == 0
            self._changed.notify()
        if last and thread is not None:
            thread.join()

    def _work(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._pending and self._users:
                    self._changed.wait()
                if failures and self._users:
                    self._changed.wait_for(lambda: not self._users, AGAIN_S[min(failures, len(AGAIN_S)) - 1])
                leaving = not self._users
                taken, self._pending = self._pending, {}
                dropped, self._dropped = self._dropped, 0
            why = self._written(list(taken.values()))
            if why is not None and not leaving:
                if not failures:
                    log.warning("refusals_awaited", error=why)
                failures += 1
                self._back(taken, dropped)
                continue
            failures = 0
            if dropped or why is not None:
                lost = dropped + (len(taken) if why else 0)
                log.error("refusals_not_recorded", count=lost, error=why)
                count(metrics.REFUSALS_LOST, by=lost)
            if leaving:
                break
        with self._changed:
            self._thread = None
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _back(self, taken: dict[tuple[str, str], Refusal], dropped: int) -> None:
        with self._changed:
            self._dropped += dropped
            for key, one in taken.items():
                same = self._pending.get(key)
                self._pending[key] = one if same is None else one.and_again(same)

    def _written(self, refusals: list[Refusal]) -> str | None:
        """None, or why they could not be written."""
        if not refusals:
            return None
        try:
            if self._kept is None:
                self._kept = self._connect()
            self._kept.add(refusals)
        except Exception as error:  # noqa: BLE001 - whatever a database raises: the thread goes on
            return f"{type(error).__name__}: {error}"
        return None
