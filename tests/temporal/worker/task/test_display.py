"""What the Temporal UI says of a task, as Markdown: a stranger can tell what it does and what it waits for."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from refold import Ctx, InputRejected, Transition, flow_skill, step, tool
from refold.temporal.data.inputs import message_from, value_from
from refold.temporal.data.wire import SignedDecision
from refold.temporal.worker.task.display import LINE_CHARS, details, note_refused
from refold.testing import fails, play, reply, transient, user


class Decision(BaseModel):
    approved: bool


YES = user({"approved": True})


@tool(effect="idempotent")
def book(amount_cents: int) -> int:
    """Books it."""
    return amount_cents


@flow_skill(id="shown")
class Shown:
    """Asks, then books."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        ctx.status("asking")
        await ctx.ask("decision", "Pay it?\nAll of it?", expect=Decision)
        await ctx.tool(book, id="pay", amount_cents=1)
        await ctx.llm("thanks")
        return ctx.fail("x" * 1000)


def test_a_question_stands_alone_and_says_how_to_answer_it() -> None:
    """
    Slot, type, question in one line, and the way to answer; parts are apart, so that a list is one.
    """
    task = play(Shown, "go").snapshot

    assert details(task).split("\n\n") == [
        "**input-required** (paused), entry 1",
        "asking",
        "- waits for an answer to `decision` (a Decision): Pay it? All of it?",
        "Answer with `refold answer T TEXT`, or with a signal or update named `message`.",
    ]


def test_a_command_for_a_task_with_a_space_in_its_id_can_be_pasted() -> None:
    """
    Temporal's own tools start tasks under any id.
    """
    task = play(Shown, "go", task_id="order 7").snapshot

    assert "`refold answer 'order 7' TEXT`" in details(task)


def test_what_is_tried_again_says_when_and_why() -> None:
    """
    A command in backoff shows its next try; one that is out again, its attempt; both, what went wrong.
    """
    busy = fails("pay", transient("the ledger is closed"))
    waits = play(Shown, "go", YES, busy, unfinished=True)
    out = play(Shown, "go", YES, busy, reply("pay", 1), unfinished=True)

    assert details(waits.snapshot).endswith(
        "- tool `book` (pay), again due at 2026-01-01 00:00:01 UTC, after: the ledger is closed"
    )
    assert details(out.snapshots[-2]).endswith("- tool `book` (pay), attempt 2, after: the ledger is closed")
    assert details(out.snapshot).endswith("- llm `thanks`")


def test_a_long_text_is_cut() -> None:
    """
    A reason of any length leaves the rest in sight.
    """
    task = play(Shown, "go", YES, reply("pay", 1), reply("thanks", "so")).snapshot

    assert len(max(details(task).splitlines(), key=len)) == LINE_CHARS


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (
            [{"gate": "g1", "decision": "granted, card 4111", "comment": "x); expected: card 4111"}],
            "signal 'decide': digest: Field required; decision: Input should be 'approved' or 'denied'; approver: ",
        ),
        (["card 4111", "card 4111"], "signal 'decide': 2 inputs came; expected: an object with gate, digest, decision"),
    ],
)
def test_a_refusal_is_logged_without_what_came(monkeypatch: pytest.MonkeyPatch, sent: list[Any], logged: str) -> None:
    """
    The sender and the journal have it; the log quotes nobody, also where a long reason was cut.
    """
    place = SimpleNamespace(namespace="default", task_queue="refold")
    monkeypatch.setattr("temporalio.workflow.info", lambda: place)
    with pytest.raises(InputRejected, match="card 4111") as refused:
        value_from(SignedDecision, sent)
    why = f"signal 'decide': {refused.value}"
    with capture_logs() as lines:
        for reason in (why, why[: why.rindex("4111") + 4]):
            note_refused(play(Shown, "go").snapshot, "unreadable", reason, by="ada", seq=3)

    whole, cut = (line["reason"] for line in lines)
    assert whole.startswith(logged)
    assert whole.endswith("approver, and perhaps comment")
    assert whole.startswith(cut)
    assert "4111" not in whole + cut


def test_a_refusal_that_quotes_nothing_is_logged_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Such as one of an empty message.
    """
    place = SimpleNamespace(namespace="default", task_queue="refold")
    monkeypatch.setattr("temporalio.workflow.info", lambda: place)
    with pytest.raises(InputRejected) as refused:
        message_from([])
    with capture_logs() as lines:
        note_refused(play(Shown, "go").snapshot, "update message", str(refused.value), by=None, seq=3)

    assert [line["reason"] for line in lines] == [str(refused.value)]
