"""The rules of receipts: a table of what is known, who asks or reports, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.effects.ledger import receipts
from refold.effects.ledger.receipts import (
    ANY_TRY,
    Ask,
    Begun,
    Finished,
    InDoubt,
    InProgress,
    KeyReused,
    LedgerAnswer,
    LedgerReceipt,
    ReceiptState,
)

NOW = 1_000.0
ASK = Ask(key="k", tool="charge", fingerprint="same", holder="me", lease_s=30)
OTHER = replace(ASK, fingerprint="other")

EXECUTING, DONE, UNKNOWN, RELEASED = ReceiptState


def receipt(state: ReceiptState, *, fence: int = 3, lease: float = 10.0) -> LedgerReceipt:
    return LedgerReceipt(
        key="k",
        tool="charge",
        fingerprint="same",
        state=state,
        fence=fence,
        lease_until=NOW + lease,
        holder="somebody",
        result='"paid"' if state is DONE else None,
        why="",
        task_id="T",
        invocation_id="T/1.1",
        began_at=NOW - 20,
        changed_at=NOW - 20,
    )


@pytest.mark.parametrize(
    ("known", "ask", "told", "becomes"),
    [
        pytest.param(None, ASK, Begun(fence=1), EXECUTING, id="nothing"),
        pytest.param(receipt(RELEASED), ASK, Begun(fence=4), EXECUTING, id="released"),
        pytest.param(receipt(RELEASED), OTHER, Begun(fence=4), EXECUTING, id="released, other arguments"),
        pytest.param(receipt(DONE), ASK, Finished(result='"paid"'), DONE, id="done"),
        pytest.param(receipt(DONE), replace(ASK, decided=3), Finished(result='"paid"'), DONE, id="done, decided"),
        pytest.param(receipt(DONE), OTHER, KeyReused(known="same", given="other"), DONE, id="done, other"),
        pytest.param(receipt(EXECUTING), ASK, InProgress(until=NOW + 10), EXECUTING, id="executing"),
        pytest.param(
            receipt(EXECUTING), replace(ASK, decided=3), InProgress(until=NOW + 10), EXECUTING, id="executing, decided"
        ),
        pytest.param(
            receipt(EXECUTING), OTHER, KeyReused(known="same", given="other"), EXECUTING, id="executing, other"
        ),
        pytest.param(receipt(EXECUTING, lease=-1), ASK, None, UNKNOWN, id="lease over"),
        pytest.param(receipt(EXECUTING, lease=-1), replace(ASK, decided=3), Begun(fence=4), EXECUTING, id="decided"),
        pytest.param(receipt(UNKNOWN), ASK, None, UNKNOWN, id="unknown"),
        pytest.param(receipt(UNKNOWN), OTHER, KeyReused(known="same", given="other"), UNKNOWN, id="unknown, other"),
        pytest.param(receipt(UNKNOWN), replace(ASK, decided=3), Begun(fence=4), EXECUTING, id="unknown, decided"),
        pytest.param(receipt(UNKNOWN), replace(ASK, decided=2), None, UNKNOWN, id="unknown, an older try decided"),
        pytest.param(receipt(UNKNOWN), replace(ASK, decided=ANY_TRY), Begun(fence=4), EXECUTING, id="any decided"),
    ],
)
def test_what_whoever_asks_is_told(
    known: LedgerReceipt | None, ask: Ask, told: LedgerAnswer | None, becomes: ReceiptState
) -> None:
    """
    One answer for every state; None stands for a doubt.
    """
    after, answer = receipts.begin(known, ask, NOW)

    assert after is not None
    assert after.state is becomes
    if told is None:
        assert answer == InDoubt(receipt=after)
    else:
        assert answer == told
    if isinstance(answer, Begun):
        assert (after.fence, after.holder, after.lease_until) == (answer.fence, "me", NOW + 30)


@pytest.mark.parametrize("ahead", [0.001, 40.0, 5 * 3600.0])
def test_a_lease_of_a_clock_that_was_ahead_begins_anew(ahead: float) -> None:
    """
    By the clock as it is now, since the worker may live: then it renews it; else it expires like any other.
    """
    known = replace(receipt(EXECUTING), changed_at=NOW + ahead, lease_until=NOW + ahead + 15)

    again, told = receipts.begin(known, replace(ASK, decided=3), NOW)
    assert told == InProgress(until=NOW + 15)
    assert again == replace(known, changed_at=NOW, lease_until=NOW + 15)
    assert receipts.begin(again, ASK, NOW + 14) == (again, InProgress(until=NOW + 15))
    _, told = receipts.begin(again, replace(ASK, decided=3), NOW + 15)
    assert told == Begun(fence=4)


def test_a_process_knows_what_it_never_began() -> None:
    """
    The database went away before it confirmed the write: nothing happened, so nobody is asked.
    """
    _, told = receipts.begin(receipt(EXECUTING), OTHER, NOW, abandoned=True)

    assert told == Begun(fence=4)


@pytest.mark.parametrize("known", [None, receipt(RELEASED)], ids=["nothing", "released"])
def test_what_another_ledger_may_know_is_unknown_here(known: LedgerReceipt | None) -> None:
    """
    It is begun only once a probe or a person has said that it may be.
    """
    doubtful = receipts.made_elsewhere(known, ASK, "another ledger", NOW)

    assert (doubtful.state, doubtful.holder, doubtful.why) == (UNKNOWN, "", "another ledger")
    assert receipts.begin(doubtful, ASK, NOW) == (doubtful, InDoubt(receipt=doubtful))
    assert isinstance(receipts.take_over(doubtful, ASK, doubtful.fence, NOW)[1], Begun)
    assert isinstance(receipts.begin(doubtful, replace(ASK, decided=ANY_TRY), NOW)[1], Begun)


@pytest.mark.parametrize("state", [EXECUTING, DONE, UNKNOWN])
def test_what_this_ledger_knows_stays(state: ReceiptState) -> None:
    """
    A receipt that is there says more than that there may be another one elsewhere.
    """
    assert receipts.made_elsewhere(receipt(state), ASK, "another ledger", NOW) == receipt(state)


@pytest.mark.parametrize("state", [EXECUTING, UNKNOWN, RELEASED])
def test_a_late_result_counts_if_nobody_took_over(state: ReceiptState) -> None:
    """
    Whatever was believed meanwhile: it took place.
    """
    after = receipts.finish(receipt(state), 3, '"late"', NOW)

    assert after is not None
    assert (after.state, after.result, after.changed_at) == (DONE, '"late"', NOW)


@pytest.mark.parametrize("state", list(ReceiptState))
def test_whoever_was_taken_over_says_nothing(state: ReceiptState) -> None:
    """
    A lower fence changes no receipt.
    """
    known = receipt(state)

    assert receipts.finish(known, 2, '"late"', NOW) == known
    assert receipts.release(known, 2, "", NOW) == known
    assert receipts.doubt(known, 2, "", NOW) == known
    assert receipts.renew(known, 2, 30, NOW) == known


def test_done_is_final() -> None:
    """
    The first result stays.
    """
    done = receipt(DONE)

    assert receipts.finish(done, 3, '"again"', NOW) == done
    assert receipts.release(done, 3, "", NOW) == done
    assert receipts.doubt(done, 3, "", NOW) == done
    assert receipts.renew(done, 3, 30, NOW) == done


def test_whoever_comes_back_has_its_lease_again() -> None:
    """
    A stalled worker that nobody took over from is believed again.
    """
    after = receipts.renew(receipt(UNKNOWN, lease=-50), 3, 30, NOW)

    assert after is not None
    assert (after.state, after.lease_until) == (EXECUTING, NOW + 30)


def test_a_probe_speaks_of_the_try_it_was_asked_about() -> None:
    """
    "Not done" lets the try be repeated, unless another has begun meanwhile.
    """
    _, told = receipts.take_over(receipt(UNKNOWN), ASK, 3, NOW)
    _, late = receipts.take_over(receipt(UNKNOWN, fence=4), ASK, 3, NOW)
    _, busy = receipts.take_over(receipt(EXECUTING, fence=4), ASK, 3, NOW)

    assert told == Begun(fence=4)
    assert isinstance(late, InDoubt)
    assert isinstance(busy, InProgress)
