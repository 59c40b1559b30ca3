"""The ledger's rules, without clock or database: what a worker may do given a receipt, and how the receipt changes.

| the receipt found                     | the answer to `begin`                    | the receipt becomes     |
| ------------------------------------- | ---------------------------------------- | ----------------------- |
| nothing, or *released*                | `Begun`                                  | executing, next fence   |
| *done*                                | `Finished`: the stored result, no call   |                         |
| *executing*, its lease runs           | `InProgress`: wait                       |                         |
| *executing*, as changed in the future | `InProgress`: wait                       | executing, a new lease  |
| *executing*, its lease has expired    | `InDoubt`: ask the probe, then a person  | unknown                 |
| *unknown*                             | `InDoubt`                                |                         |
| the last two, a person said "retry"   | `Begun`                                  | executing, next fence   |
| other arguments, unless *released*    | `KeyReused`                              |                         |

Where an earlier attempt may have been made by a worker with another ledger, a receipt that is missing or *released* is
*unknown* before the next attempt asks, with the next fence and no holder.

| reported by a compensating command   | if the receipt holds the compensated result | else                 |
| ------------------------------------ | ---------------------------------------- | ----------------------- |
| undone                               | released, `undone` counts one more       | nothing                 |

| reported by the performing worker    | if its fence is the newest               | else: overtaken         |
| ------------------------------------ | ---------------------------------------- | ----------------------- |
| finished, however late               | done, with the result                    | nothing                 |
| certainly not done                   | released                                 | nothing                 |
| outcome unknown                      | unknown                                  | nothing                 |
| still performing                     | executing, its lease extended            | nothing                 |

The fence numbers the attempts at one key. A worker whose fence is lower than the receipt's was overtaken, and the
ledger ignores its report. *done* is final except for compensation: the first result stays. A compensated effect may be
performed again under its key; its receiver gets a different idempotency key, since it has completed the first one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import JsonValue

from refold.core.commands import result_hash
from refold.core.values import text
from refold.engine import EngineError

ENV = "REFOLD_LEDGER"
"""The setting that names the ledger."""

ANY_TRY = -1

LEASE_S = 30.0
"""The default lease in seconds: how long a worker that does not renew it counts as alive. Outlasts a stall of 15 s."""


class LedgerUnavailable(EngineError):
    """The ledger cannot be read or written now. No effect was begun, and no receipt is lost.

    Attributes:
        place: The file or database, without user and password.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"the receipt ledger ({ENV}) in {place} cannot be used: {problem}")


class ReceiptState(StrEnum):
    """What the ledger knows of an effect's outcome."""

    EXECUTING = "executing"
    DONE = "done"
    UNKNOWN = "unknown"
    """An attempt began the effect, and its outcome is not known."""
    RELEASED = "released"
    """The effect certainly did not take place, or was undone; a worker may perform it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A worker's request to perform an effect once.

    Attributes:
        key: The idempotency key as the receiver sees it; equal keys mean the same effect.
        tool: The tool's name.
        fingerprint: The hash of the arguments; see `refold.effects.ledger.ledger.fingerprint`.
        holder: The worker process that would perform the effect.
        lease_s: How long the worker counts as alive without renewing its lease, in seconds.
        task_id: The requesting task, for people.
        invocation_id: The command's id, for people.
        decided: The fence of the attempt that a person decided to repeat; `ANY_TRY` if the person meant the latest
            attempt whatever its fence; 0 without a decision.
    """

    key: str
    tool: str
    fingerprint: str
    holder: str
    lease_s: float
    task_id: str = ""
    invocation_id: str = ""
    decided: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReceipt:
    """The record of one effect. Attributes not listed here are those of `Ask`.

    Attributes:
        fence: The number of attempts so far, and so the number of the latest one.
        holder: The process that performs or performed it; empty if it may have been one with another ledger.
        lease_until: When the performing worker's lease expires, in seconds since 1970.
        result: The result as JSON; None unless the state is DONE.
        why: Why the state is UNKNOWN or RELEASED, for people.
        began_at: When the latest attempt began, in seconds since 1970.
        changed_at: When the receipt last changed, in seconds since 1970.
        undone: How often the effect was undone.
        undone_by: The id of the command that last undid the effect; empty if none has.
    """

    key: str
    tool: str
    fingerprint: str
    state: ReceiptState
    fence: int
    lease_until: float
    holder: str
    result: str | None
    why: str
    task_id: str
    invocation_id: str
    began_at: float
    changed_at: float
    undone: int = 0
    undone_by: str = ""


# --- answers to `begin` and `take_over`


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The asking worker performs the effect.

    Attributes:
        fence: The number of this attempt.
        undone: How often the effect was undone before.
    """

    fence: int
    undone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The effect is done; `result` is its recorded result as JSON.

    Attributes:
        task_id: The task that performed it.
        at: When it was recorded, in seconds since 1970.
    """

    result: str
    task_id: str = field(default="", compare=False)
    at: float = field(default=0.0, compare=False)

    @property
    def value(self) -> JsonValue:
        """The recorded result, decoded."""
        value: JsonValue = json.loads(self.result)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Another call performs the effect; its lease expires at `until`, in seconds since 1970, unless it is renewed."""

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """An attempt began the effect, and its outcome is not known."""

    receipt: LedgerReceipt

    @property
    def fence(self) -> int:
        """The number of the attempt whose outcome is not known."""
        return self.receipt.fence


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReused:
    """The key belongs to an effect with other arguments: the recorded fingerprint is `known`, the new one `given`."""

    known: str
    given: str


LedgerAnswer = Begun | Finished | InProgress | InDoubt | KeyReused


# --- the rules


def begin(
    receipt: LedgerReceipt | None, ask: Ask, now: float, *, abandoned: bool = False
) -> tuple[LedgerReceipt | None, LedgerAnswer]:
    """Answer a worker that asks to perform an effect. Returns the new receipt and the answer.

    Args:
        receipt: The receipt found; None if there is none.
        ask: The worker's request.
        now: The time in seconds since 1970.
        abandoned: The receipt is of an attempt of this process, which knows that it did not begin the effect.
    """
    if receipt is None or receipt.state is ReceiptState.RELEASED:
        return _taken(receipt, ask, now)
    if abandoned and receipt.state is ReceiptState.EXECUTING:
        return _taken(receipt, ask, now)
    if receipt.fingerprint != ask.fingerprint:
        return receipt, KeyReused(known=receipt.fingerprint, given=ask.fingerprint)
    if receipt.state is ReceiptState.DONE:
        return receipt, Finished(result=receipt.result or "null", task_id=receipt.task_id, at=receipt.changed_at)
    if went_back(receipt, now):
        # The lease begins anew, since its worker may live, and renews it then. Else it would run for hours, if the
        # clock was ahead by hours.
        lease_s = receipt.lease_until - receipt.changed_at
        receipt = replace(receipt, lease_until=now + lease_s, changed_at=now)
    if receipt.state is ReceiptState.EXECUTING and now < receipt.lease_until:
        return receipt, InProgress(until=receipt.lease_until)
    if ask.decided in (receipt.fence, ANY_TRY):
        return _taken(receipt, ask, now)
    if receipt.state is ReceiptState.EXECUTING:
        receipt = _changed(receipt, ReceiptState.UNKNOWN, now, "the worker that performed it fell silent")
    return receipt, InDoubt(receipt=receipt)


def went_back(receipt: LedgerReceipt, now: float) -> bool:
    """Whether the clock has gone back since a lease began."""
    return receipt.state is ReceiptState.EXECUTING and now < receipt.changed_at


def take_over(
    receipt: LedgerReceipt | None, ask: Ask, fence: int, now: float
) -> tuple[LedgerReceipt | None, LedgerAnswer]:
    """As `begin`, after a probe has answered `NotDone` for attempt `fence`."""
    doubtful = receipt is not None and receipt.state is ReceiptState.UNKNOWN and receipt.fence == fence
    return _taken(receipt, ask, now) if doubtful else begin(receipt, ask, now)


def made_elsewhere(receipt: LedgerReceipt | None, ask: Ask, why: str, now: float) -> LedgerReceipt:
    """The receipt where a worker with another ledger may have made an earlier attempt; `why` is for people."""
    if receipt is not None and receipt.state is not ReceiptState.RELEASED:
        return receipt
    begun, _ = _taken(receipt, replace(ask, holder=""), now)
    return _changed(begun, ReceiptState.UNKNOWN, now, why)


def finish(receipt: LedgerReceipt | None, fence: int, result: str, now: float) -> LedgerReceipt | None:
    """The receipt after attempt `fence` has succeeded, even if its lease has expired."""
    if receipt is None or receipt.fence != fence or receipt.state is ReceiptState.DONE:
        return receipt
    return replace(_changed(receipt, ReceiptState.DONE, now, ""), result=result)


def release(receipt: LedgerReceipt | None, fence: int, why: str, now: float) -> LedgerReceipt | None:
    """The receipt after attempt `fence` has certainly had no effect."""
    if receipt is None or receipt.fence != fence or receipt.state is ReceiptState.DONE:
        return receipt
    return _changed(receipt, ReceiptState.RELEASED, now, why)


def doubt(receipt: LedgerReceipt | None, fence: int, why: str, now: float) -> LedgerReceipt | None:
    """The receipt after the worker of attempt `fence` could not find out its outcome."""
    if receipt is None or receipt.fence != fence or receipt.state is not ReceiptState.EXECUTING:
        return receipt
    return _changed(receipt, ReceiptState.UNKNOWN, now, why)


def resolve(
    receipt: LedgerReceipt | None, ask: Ask, result: str, now: float
) -> tuple[LedgerReceipt, Finished | KeyReused]:
    """The receipt after a person has given the effect's result, and the answer; a result recorded before stays."""
    if receipt is None or receipt.state is ReceiptState.RELEASED:
        receipt, _ = _taken(receipt, ask, now)
    if receipt.fingerprint != ask.fingerprint:
        return receipt, KeyReused(known=receipt.fingerprint, given=ask.fingerprint)
    if receipt.state is not ReceiptState.DONE:
        receipt = replace(_changed(receipt, ReceiptState.DONE, now, ""), result=result)
    return receipt, Finished(result=receipt.result or "null", task_id=receipt.task_id, at=receipt.changed_at)


def undo(receipt: LedgerReceipt | None, by: str, result: str, now: float) -> LedgerReceipt | None:
    """The receipt after command `by` has undone the effect whose result has the hash `result`; once per command."""
    by = storable(by)
    if receipt is None or receipt.state is not ReceiptState.DONE or receipt.undone_by == by:
        return receipt
    if result_hash(json.loads(receipt.result or "null")) != result:
        return receipt
    released = _changed(receipt, ReceiptState.RELEASED, now, f"undone by {by}")
    return replace(released, result=None, undone=receipt.undone + 1, undone_by=by)


def undone_before(receipt: LedgerReceipt, by: str) -> bool:
    """Whether another command than `by` has undone the effect, and nobody has performed it since."""
    return receipt.state is ReceiptState.RELEASED and receipt.undone_by not in ("", storable(by))


def renew(receipt: LedgerReceipt | None, fence: int, lease_s: float, now: float) -> LedgerReceipt | None:
    """The receipt after the worker of attempt `fence` has renewed its lease; an overtaken worker changes nothing."""
    mine = receipt is not None and receipt.fence == fence
    if receipt is None or not mine or receipt.state not in (ReceiptState.EXECUTING, ReceiptState.UNKNOWN):
        return receipt
    return replace(receipt, state=ReceiptState.EXECUTING, lease_until=now + lease_s, why="", changed_at=now)


def taken(ask: Ask, fence: int, now: float, before: LedgerReceipt | None = None) -> LedgerReceipt:
    """The receipt of attempt `fence`, which begins now."""
    return LedgerReceipt(
        key=ask.key,
        tool=ask.tool,
        fingerprint=ask.fingerprint,
        state=ReceiptState.EXECUTING,
        fence=fence,
        lease_until=now + ask.lease_s,
        holder=ask.holder,
        result=None,
        why="",
        task_id=storable(ask.task_id),
        invocation_id=storable(ask.invocation_id),
        began_at=now,
        changed_at=now,
        undone=0 if before is None else before.undone,
        undone_by="" if before is None else before.undone_by,
    )


def _taken(receipt: LedgerReceipt | None, ask: Ask, now: float) -> tuple[LedgerReceipt, Begun]:
    begun = taken(ask, 1 if receipt is None else receipt.fence + 1, now, receipt)
    return begun, Begun(fence=begun.fence, undone=begun.undone)


def _changed(receipt: LedgerReceipt, state: ReceiptState, now: float, why: str) -> LedgerReceipt:
    return replace(receipt, state=state, why=storable(why), changed_at=now)


def storable(said: str) -> str:
    """`said` as every database stores it: PostgreSQL refuses a NUL, and none stores half a surrogate pair."""
    return text(said).replace("\0", "\N{REPLACEMENT CHARACTER}")
