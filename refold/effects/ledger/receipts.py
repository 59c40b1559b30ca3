"""What a receipt says about an effect, and what may follow: the rules of the ledger, without clock or database.

| found                                | who asks is told                         | and the receipt becomes |
| ------------------------------------ | ---------------------------------------- | ----------------------- |
| nothing, or *released*               | `Perform`                                | executing, next fence   |
| *done*                               | `Finished`: the stored result, no call   |                         |
| *executing*, its lease runs          | `InProgress`: wait                       |                         |
| *executing*, the lease is over       | `OutcomeUnknown`: ask the probe, then a person | unknown                 |
| *unknown*                            | `OutcomeUnknown`                               |                         |
| in doubt, and a person said "retry"  | `Perform`                                | executing, next fence   |
| other arguments, unless *released*   | `KeyReused`                              |                         |

| told by whoever undid it             | if that very result is the newest        | else                    |
| ------------------------------------ | ---------------------------------------- | ----------------------- |
| undone                               | released, with one undoing more          | nothing                 |

| told by whoever performs it          | if its fence is the newest               | else: taken over        |
| ------------------------------------ | ---------------------------------------- | ----------------------- |
| finished, however late               | done, with the result                    | nothing                 |
| surely not done                      | released                                 | nothing                 |
| cannot tell                          | unknown                                  | nothing                 |
| still at it                          | executing, its lease extended            | nothing                 |

The fence counts the performers of one key. Whoever has a lower one than the receipt was taken over, and what it says
counts no more. *done* is final, but for an undoing: whatever comes later, the first result stays. An effect that was
undone may be performed again under its key; the receiver is shown another one, for to it the old one is done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import JsonValue

from refold.core.commands import result_hash
from refold.core.errors import EngineError

ANY_TRY = -1

LEASE_S = 30.0
"""How long a silent worker is believed to be at work, if nobody says otherwise. A stall of 15 s passes unnoticed."""


class LedgerUnavailable(EngineError):
    """The ledger cannot be read or written now. Nothing was begun because of it, and nothing is forgotten.

    Attributes:
        place: The file or database, without user and password.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"the receipt ledger in {place} cannot be used: {problem}")


class ReceiptState(StrEnum):
    """How far an effect has come, as far as is known."""

    EXECUTING = "executing"
    DONE = "done"
    UNKNOWN = "unknown"
    """It began, and nobody knows whether it took place."""
    RELEASED = "released"
    """It surely did not take place; it may be performed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Somebody wants an effect performed once.

    Attributes:
        key: What makes it the same effect: the key as the receiver sees it.
        tool: The tool's name.
        fingerprint: Of the arguments.
        holder: Who would perform it: one worker process.
        lease_s: How long it is believed to be at it without saying so, in seconds.
        task_id: The task that asks, for people.
        invocation_id: The command, for people.
        decided: The fence of the try about which a person has said that it may be repeated; `ANY_TRY` if they meant
            the last one, whichever it was; 0 if nobody has.
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
class Receipt:
    """What is known about one effect.

    Attributes:
        fence: How often it has been begun.
        lease_until: Until when its performer is believed, in seconds since 1970.
        result: JSON, once it is done.
        why: How it came to be unknown or released, for people.
        began_at: When it was begun last, in seconds since 1970.
        changed_at: When the receipt last changed, in seconds since 1970.
        undone: How often it was undone.
        undone_by: The command that undid it last.
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


# --- what is answered to whoever asks


@dataclass(frozen=True, slots=True, kw_only=True)
class Perform:
    """It is theirs to perform.

    Attributes:
        undone: How often it was undone before.
    """

    fence: int
    undone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """It is done; the result as it was written, in JSON."""

    result: str

    @property
    def value(self) -> JsonValue:
        """The result."""
        value: JsonValue = json.loads(self.result)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Somebody is at it."""

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeUnknown:
    """It began, and nobody knows whether it took place."""

    receipt: Receipt

    @property
    def fence(self) -> int:
        """Which try is in doubt."""
        return self.receipt.fence


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReused:
    """The key stands for an effect with other arguments."""

    known: str
    given: str


LedgerAnswer = Perform | Finished | InProgress | OutcomeUnknown | KeyReused


# --- the rules


def begin(
    receipt: Receipt | None, ask: Ask, now: float, *, abandoned: bool = False
) -> tuple[Receipt | None, LedgerAnswer]:
    """What whoever asks is told, and the receipt from then on.

    Args:
        receipt: What is known; None if nothing is.
        now: In seconds since 1970.
        abandoned: The receipt's performer is this very process, which knows that it never came to begin.
    """
    if receipt is None or receipt.state is ReceiptState.RELEASED:
        return _taken(receipt, ask, now)
    if abandoned and receipt.state is ReceiptState.EXECUTING:
        return _taken(receipt, ask, now)
    if receipt.fingerprint != ask.fingerprint:
        return receipt, KeyReused(known=receipt.fingerprint, given=ask.fingerprint)
    if receipt.state is ReceiptState.DONE:
        return receipt, Finished(result=receipt.result or "null")
    if receipt.state is ReceiptState.EXECUTING and now < receipt.lease_until:
        return receipt, InProgress(until=receipt.lease_until)
    if ask.decided in (receipt.fence, ANY_TRY):
        return _taken(receipt, ask, now)
    if receipt.state is ReceiptState.EXECUTING:
        receipt = _changed(receipt, ReceiptState.UNKNOWN, now, "the worker that performed it fell silent")
    return receipt, OutcomeUnknown(receipt=receipt)


def take_over(receipt: Receipt | None, ask: Ask, fence: int, now: float) -> tuple[Receipt | None, LedgerAnswer]:
    """As `begin`, when a probe has said that try number `fence` surely did not take place."""
    doubtful = receipt is not None and receipt.state is ReceiptState.UNKNOWN and receipt.fence == fence
    return _taken(receipt, ask, now) if doubtful else begin(receipt, ask, now)


def finish(receipt: Receipt | None, fence: int, result: str, now: float) -> Receipt | None:
    """The receipt when try number `fence` has taken place; late or not."""
    if receipt is None or receipt.fence != fence or receipt.state is ReceiptState.DONE:
        return receipt
    return replace(_changed(receipt, ReceiptState.DONE, now, ""), result=result)


def release(receipt: Receipt | None, fence: int, why: str, now: float) -> Receipt | None:
    """The receipt when try number `fence` has surely not taken place."""
    if receipt is None or receipt.fence != fence or receipt.state is ReceiptState.DONE:
        return receipt
    return _changed(receipt, ReceiptState.RELEASED, now, why)


def doubt(receipt: Receipt | None, fence: int, why: str, now: float) -> Receipt | None:
    """The receipt when whoever performed try number `fence` cannot tell whether it took place."""
    if receipt is None or receipt.fence != fence or receipt.state is not ReceiptState.EXECUTING:
        return receipt
    return _changed(receipt, ReceiptState.UNKNOWN, now, why)


def resolve(receipt: Receipt | None, ask: Ask, result: str, now: float) -> Receipt:
    """The receipt when a person says that it took place, and what it gave; a result that is known stays."""
    if receipt is not None and receipt.state is ReceiptState.DONE:
        return receipt
    if receipt is None:
        receipt, _ = _taken(None, ask, now)
    return replace(_changed(receipt, ReceiptState.DONE, now, ""), result=result)


def undo(receipt: Receipt | None, by: str, result: str, now: float) -> Receipt | None:
    """The receipt when command `by` has undone the effect that came to a result of this hash; once for each command."""
    if receipt is None or receipt.state is not ReceiptState.DONE or receipt.undone_by == by:
        return receipt
    if result_hash(json.loads(receipt.result or "null")) != result:
        return receipt
    released = _changed(receipt, ReceiptState.RELEASED, now, f"undone by {by}")
    return replace(released, result=None, undone=receipt.undone + 1, undone_by=by)


def renew(receipt: Receipt | None, fence: int, lease_s: float, now: float) -> Receipt | None:
    """The receipt when whoever performs try number `fence` is alive: if nobody took over, it is theirs again."""
    mine = receipt is not None and receipt.fence == fence
    if receipt is None or not mine or receipt.state not in (ReceiptState.EXECUTING, ReceiptState.UNKNOWN):
        return receipt
    return replace(receipt, state=ReceiptState.EXECUTING, lease_until=now + lease_s, why="", changed_at=now)


def _taken(receipt: Receipt | None, ask: Ask, now: float) -> tuple[Receipt, Perform]:
    fence = 1 if receipt is None else receipt.fence + 1
    taken = Receipt(
        key=ask.key,
        tool=ask.tool,
        fingerprint=ask.fingerprint,
        state=ReceiptState.EXECUTING,
        fence=fence,
        lease_until=now + ask.lease_s,
        holder=ask.holder,
        result=None,
        why="",
        task_id=ask.task_id,
        invocation_id=ask.invocation_id,
        began_at=now,
        changed_at=now,
        undone=0 if receipt is None else receipt.undone,
        undone_by="" if receipt is None else receipt.undone_by,
    )
    return taken, Perform(fence=fence, undone=taken.undone)


def _changed(receipt: Receipt, state: ReceiptState, now: float, why: str) -> Receipt:
    return replace(receipt, state=state, why=why, changed_at=now)
