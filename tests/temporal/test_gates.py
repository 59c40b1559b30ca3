"""Gates, retries, blocked tasks and compensation on a real Temporal server, whose clock is moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic import JsonValue
from structlog.testing import capture_logs
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from activities.orders import find_order
from activities.payments import pay_refund
from refold import Content, DecisionMade, InputRejected, Status, TaskState
from refold.core.commands import Notify
from refold.core.events import ChildAsked, LlmResult
from refold.core.fold.journal import Entry
from refold.effects.ledger.refused_table import RefusedTable
from refold.effects.ledger.store import store_from_env
from refold.engine import Decision, TaskFilter, TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.services.mail import MailServer
from tests.services.shop import Shop
from tests.temporal import gate_skills, skills
from tests.temporal.conftest import PATIENT, failures_of_the_worker, replay_all
from tests.temporal.test_task import begun, collected, settled, text
from tests.temporal.tools import endless
from tests.waiting import a_moment
from workflows import refund

QUEUE = "gates"
KEY = "key-of-the-tests"
MINUTE = 60


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Where this module's worker keeps its receipts, and the key that it checks signatures with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_LEDGER", str(tmp_path_factory.mktemp("ledger") / "ledger.db"))
        patch.setenv("REFOLD_APPROVAL_KEY", KEY)
        yield patch


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder, setting: pytest.MonkeyPatch) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker for these skills; what ended in it is replayed at the end."""
    tools: list[Any] = [*gate_skills.TOOLS, find_order, pay_refund, endless]
    plugin = RefoldPlugin([gate_skills, refund, skills.BusyWorkflow], tools, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """The mail server."""
    with MailServer() as mail:
        for name, value in mail.environment.items():
            monkeypatch.setenv(name, value)
        yield mail


async def forward(engine: TemporalEngine, task_id: str, seconds: float) -> None:
    """Move a task's clock."""
    skipper = TimeSkipper(engine.client)
    await skipper.fast_forward(engine.client.get_workflow_handle(task_id), timedelta(seconds=seconds))


async def journal(engine: TemporalEngine, task_id: str) -> list[Entry]:
    return await collected(engine.journal(task_id))


async def moves(engine: TemporalEngine, task_id: str) -> list[str]:
    return [move.event.value for entry in await journal(engine, task_id) for move in entry.moves]


async def until(engine: TemporalEngine, task_id: str, state: TaskState) -> TaskView:
    """The task, once it is in this state."""
    async for _ in engine.watch(task_id, follow=True):
        if (await engine.look(task_id)).lifecycle is state:
            break
    view = await engine.look(task_id)
    assert view.lifecycle is state, view
    return view


def refund_of(order_id: str, cents: int = 1_999) -> Content:
    return Content.from_data({"order_id": order_id, "amount_cents": cents})


def commands(entries: list[Entry], kind: type[Any]) -> list[str]:
    return [one.command.id for entry in entries for one in entry.commands if isinstance(one.command, kind)]


# --- the refund, and the time it is given


@pytest.fixture
def order(shop: Shop) -> str:
    """An order that was paid, of this test's own."""
    order_id = f"A{uuid4().hex[:6]}"
    shop.order(order_id, paid_cents=50_000)
    return order_id


async def test_a_refund_is_paid_once_a_person_approves(
    engine: TemporalEngine, shop: Shop, mail: MailServer, order: str
) -> None:
    """
    Looked up, advised on, approved, paid, and the customer told.
    """
    view = await engine.start("refund", refund_of(order))
    paused = await settled(engine, view.task_id)
    assert (paused.status, shop.ledger, paused.waiting_for[0].gate_kind) == (Status.INPUT_REQUIRED, [], "approval")

    await engine.decide(view.task_id, approved=True, approver="ada")
    done = await settled(engine, view.task_id)

    assert (done.status, done.reason) == (Status.COMPLETED, "")
    assert [paid.amount_cents for paid in shop.paid("refund")] == [1_999]
    assert [message["To"] for message in mail.inbox] == [f"{order.lower()}@example.org"]


async def test_a_denied_refund_is_not_paid(engine: TemporalEngine, shop: Shop, order: str) -> None:
    """
    A denial ends the task, with who denied and why.
    """
    view = await engine.start("refund", refund_of(order))
    await settled(engine, view.task_id)

    await engine.decide(view.task_id, approved=False, approver="ada", comment="a duplicate")
    done = await settled(engine, view.task_id)

    assert (done.status, done.reason) == (Status.FAILED, "approval_denied by ada: a duplicate")
    assert shop.ledger == []


async def test_nobody_decides_in_time(engine: TemporalEngine, shop: Shop, mail: MailServer, order: str) -> None:
    """
    Reminded once at 15:00, failed at 30:00, a grant at 33:00 recorded; recovery neither asks twice nor pays twice.
    """
    view = await engine.start("refund", refund_of(order))
    gate = (await settled(engine, view.task_id)).waiting_for[0]
    began = (await journal(engine, view.task_id))[-1].at

    await forward(engine, view.task_id, 29 * MINUTE)
    waiting = await engine.look(view.task_id)
    assert waiting.lifecycle is TaskState.PAUSED
    await forward(engine, view.task_id, 4 * MINUTE)
    failed = await until(engine, view.task_id, TaskState.FAILED)
    assert (failed.status, failed.reason) == (Status.FAILED, "approval_timeout")
    with pytest.raises(InputRejected, match="has ended"):
        await engine.decide(view.task_id, gate.gate, approved=False, approver="ada", digest=gate.digest)
    with pytest.raises(InputRejected, match="has ended and is not over"):
        await engine.recover(view.task_id)
    with pytest.raises(InputRejected, match=r"has ended \(failed\); there is nothing to cancel"):
        await engine.cancel(view.task_id)
    await engine.decide(view.task_id, gate.gate, approved=True, approver="ada", digest=gate.digest)
    late = await engine.look(view.task_id)
    assert (late.late, late.lifecycle) == ("ada", TaskState.FAILED)
    with pytest.raises(InputRejected, match="has ended"):
        await engine.decide(view.task_id, gate.gate, approved=True, approver="bob", digest=gate.digest)

    entries = await journal(engine, view.task_id)
    minutes = {entry.event.kind: round((entry.at - began).total_seconds() / 60) for entry in entries}
    assert (minutes["reminder_due"], minutes["gate_timed_out"]) == (15, 30)
    assert 33 <= minutes["decision_made"] <= 34
    assert len(commands(entries, Notify)) == 1

    done = await recovered(engine, view.task_id)
    assert (done.status, done.recovered_from) == (Status.COMPLETED, view.task_id)
    with pytest.raises(InputRejected, match=f"{done.task_id!r} goes on for it .completed.*would make the same effects"):
        await engine.recover(view.task_id)
    assert shop.asked.count("GET /orders") == 1
    assert len(shop.ledger) == len(mail.inbox) == 1


async def recovered(engine: TemporalEngine, task_id: str) -> TaskView:
    view = await engine.recover(task_id)
    return await settled(engine, view.task_id)


async def test_after_grace_a_grant_is_refused(engine: TemporalEngine, shop: Shop, order: str) -> None:
    """
    At 36:00 the task has ended for good, and says so.
    """
    view = await engine.start("refund", refund_of(order))
    gate = (await settled(engine, view.task_id)).waiting_for[0]

    await forward(engine, view.task_id, 36 * MINUTE)

    with pytest.raises(InputRejected, match="has ended"):
        await engine.decide(view.task_id, gate.gate, approved=True, approver="ada", digest=gate.digest)
    assert (await engine.look(view.task_id)).late is None
    assert shop.ledger == []


async def test_a_late_grant_is_for_the_gate_that_it_names(engine: TemporalEngine) -> None:
    """
    A grant for another gate of the task, or for none that it ever had, is not recorded for the one that timed out.
    """
    view = await engine.start("bundle", Content.from_data({"amounts": [50, 5_000]}))
    small, large = (await settled(engine, view.task_id)).waiting_for
    await forward(engine, view.task_id, 31 * MINUTE)
    await until(engine, view.task_id, TaskState.FAILED)

    for named in (large.slot, large.gate, "nothing"):
        with pytest.raises(InputRejected, match=r"no gate .* is open"):
            await engine.decide(view.task_id, named, approved=True, approver="ada")
    assert (await engine.look(view.task_id)).late is None
    await engine.decide(view.task_id, small.gate, approved=True, approver="ada")

    assert (await engine.look(view.task_id)).late == "ada"


async def test_a_refund_that_was_paid_is_not_paid_again(
    engine: TemporalEngine, shop: Shop, mail: MailServer, order: str
) -> None:
    """
    The mail server refuses for good, the task fails; recovered, it writes the mail and pays nothing.
    """
    mail.refuse("550 no such mailbox")
    view = await engine.start("refund", refund_of(order))
    await settled(engine, view.task_id)
    await engine.decide(view.task_id, approved=True, approver="ada")
    failed = await settled(engine, view.task_id)
    assert (failed.status, len(shop.ledger), mail.inbox) == (Status.FAILED, 1, [])

    done = await recovered(engine, view.task_id)

    assert (done.status, done.reason) == (Status.COMPLETED, "")
    assert (len(shop.ledger), len(mail.inbox), shop.asked.count("GET /orders")) == (1, 1, 1)


async def test_who_decided_and_who_was_refused_is_logged(engine: TemporalEngine) -> None:
    """
    The transition has the approver, the comment and the sender's time; a refusal has who and why, and is counted. What
    is refused before it is in history leaves the journal as it was.
    """
    with capture_logs() as logs:
        view = await engine.start("gates", Content.from_data({"amounts": [5], "approvers": ["ada"]}))
        view = await settled(engine, view.task_id)
        with pytest.raises(InputRejected, match="eve may not decide here"):
            await engine.decide(view.task_id, approved=True, approver="eve", vouched_by="tests")
        assert (await engine.look(view.task_id)).seq == view.seq
        await engine.decide(view.task_id, approved=True, approver="ada", vouched_by="tests", comment="as agreed")
        await settled(engine, view.task_id)

    mine = [line for line in logs if line.get("task_id") == view.task_id]
    (refused,) = [line for line in mine if line["event"] == "event_refused"]
    (granted,) = [line["metadata"] for line in mine if line.get("trigger") == "approval_granted"]
    assert (refused["trigger"], refused["by"], refused["seq"]) == ("update decide", "eve", None)
    assert "eve may not decide here" in refused["reason"]
    table = RefusedTable(store_from_env())
    while not (kept := table.newest(view.task_id)):
        pass  # a thread writes it
    table.close()
    assert [(one.trigger, one.by, one.reason, one.times) for one in kept] == [
        ("update decide", "eve", refused["reason"], 1)
    ]
    assert (granted["by"], granted["asserted_by"], granted["comment"]) == ("ada", "tests", "as agreed")
    assert datetime.fromisoformat(granted["said_at"]).tzinfo is not None


# --- retries, and what is blocked


async def fact_of(engine: TemporalEngine, skill: str = "asks_facts") -> TaskView:
    """A task that asks for a fact, at its first failure."""
    view = await engine.start(skill, text("tides"))
    async for entry in engine.watch(view.task_id, follow=True):
        assert isinstance(entry, Entry)
        if entry.seq >= 2:
            break
    return await engine.look(view.task_id)


def waits(entries: list[Entry]) -> list[int]:
    """The seconds before each retry."""
    return [round((one.due_at - entry.at).total_seconds()) for entry in entries for one in entry.backoffs]


@pytest.mark.parametrize(
    ("statuses", "retry_after", "waited", "status", "reason"),
    [
        pytest.param([503, 503], None, [1, 2], Status.COMPLETED, "", id="503-twice"),
        pytest.param([503] * 4, None, [1, 2, 4], Status.FAILED, "no retry left", id="503-four-times"),
        pytest.param([429], "7", [7], Status.COMPLETED, "", id="429-with-retry-after"),
        pytest.param([422], None, [], Status.FAILED, "422", id="422"),
        pytest.param([401], None, [], Status.FAILED, "401", id="401"),
        pytest.param([403], None, [], Status.FAILED, "403", id="403"),
    ],
)
async def test_later_is_later_and_never_is_never(
    engine: TemporalEngine,
    shop: Shop,
    statuses: list[int],
    retry_after: str | None,
    waited: list[int],
    status: Status,
    reason: str,
) -> None:
    """
    Each wait is in the journal, and on the clock; what cannot help is not tried again.
    """
    shop.trouble("/facts", *statuses, retry_after=retry_after)
    view = await fact_of(engine)
    if waited:
        await forward(engine, view.task_id, sum(waited) + 1)
    ended = await settled(engine, view.task_id)

    entries = await journal(engine, view.task_id)
    assert (ended.status, waits(entries)) == (status, waited)
    assert reason in ended.reason
    assert len(shop.asked) == len(waited) + 1
    assert (entries[-1].at - entries[0].at).total_seconds() >= sum(waited)


async def test_a_blocked_task_waits_for_its_dependency(engine: TemporalEngine, shop: Shop) -> None:
    """
    The service is down for five hours: blocked and probed ever less often; it is back, and the task goes on.
    """
    shop.trouble("/facts", *[503] * 200)
    view = await fact_of(engine, "waits_for_facts")
    await forward(engine, view.task_id, 5 * 60 * MINUTE)
    blocked = await engine.look(view.task_id)
    assert (blocked.lifecycle, blocked.status) == (TaskState.BLOCKED, Status.WORKING)
    assert blocked.pending[0].blocked
    asked = len(shop.asked)
    assert 10 <= asked <= 20

    shop.calm()
    await forward(engine, view.task_id, 31 * MINUTE)
    done = await settled(engine, view.task_id)

    assert (done.status, len(shop.asked)) == (Status.COMPLETED, asked + 1)
    assert (await moves(engine, view.task_id))[-3:] == ["block_on_dependency", "dependency_resolved", "complete"]


async def blocked_task(engine: TemporalEngine, shop: Shop) -> TaskView:
    shop.trouble("/facts", *[503] * 200)
    view = await fact_of(engine, "waits_for_facts")
    await forward(engine, view.task_id, 10)
    return await until(engine, view.task_id, TaskState.BLOCKED)


async def test_an_operator_releases_a_blocked_task(engine: TemporalEngine, shop: Shop) -> None:
    """
    By an outcome, or by another try at once.
    """
    given = await blocked_task(engine, shop)
    await engine.resolve(given.task_id, outcome=42, by="ops")
    assert (await settled(engine, given.task_id)).messages[-1].text == "42"

    again = await blocked_task(engine, shop)
    shop.calm()
    await engine.resolve(again.task_id, retry=True, by="ops")
    done = await settled(engine, again.task_id)
    assert done.status is Status.COMPLETED
    assert "to be performed again, as decided by ops" in " ".join(
        one.note for one in await journal(engine, done.task_id)
    )


async def test_an_operator_releases_a_task_while_its_dependency_is_probed(engine: TemporalEngine, shop: Shop) -> None:
    """
    The command is sent again once the probe's attempt has ended: an activity id has one open attempt at a time.
    """
    task_id = (await blocked_task(engine, shop)).task_id
    shop.calm()
    shop.delay("/facts")
    forwarding = asyncio.create_task(forward(engine, task_id, 31 * MINUTE))  # the clock stands while a probe is out
    await shop.waited("/facts")

    await engine.resolve(task_id, retry=True, by="ops")
    shop.go_on("/facts")
    done = await settled(engine, task_id)
    await asyncio.gather(forwarding, return_exceptions=True)

    assert done.status is Status.COMPLETED
    history = await engine.client.get_workflow_handle(task_id).fetch_history()
    assert not failures_of_the_worker(history.events)


# --- who decides


async def at_gate(engine: TemporalEngine, *, owner: str | None = None, **plan: Any) -> TaskView:
    view = await engine.start("gates", Content.from_data(plan), owner=owner)
    return await settled(engine, view.task_id)


def decision_at(view: TaskView, approver: str = "ada", **more: Any) -> dict[str, Any]:
    wait = view.waiting_for[0]
    said = {"gate": wait.gate, "digest": wait.digest, "decision": "approved", "approver": approver}
    return {**said, **more}


async def test_two_approvers_at_the_same_moment(engine: TemporalEngine) -> None:
    """
    One of them decides, the other hears that no gate is open; both are clear, and the task passes once.
    """
    view = await at_gate(engine)

    answers = await asyncio.gather(
        *(engine.decide(view.task_id, approved=True, approver=who) for who in ("ada", "bob")), return_exceptions=True
    )

    refused = [answer for answer in answers if isinstance(answer, InputRejected)]
    assert len(refused) == 1
    assert (await settled(engine, view.task_id)).messages[-1].text in ("approved by ada", "approved by bob")


async def bundle(engine: TemporalEngine, amounts: Sequence[int], **plan: Any) -> tuple[str, list[Decision]]:
    """A task whose gates are open together, and a grant for each of what it shows."""
    content = Content.from_data({"amounts": list(amounts), "on_denied": "continue", **plan})
    view = await settled(engine, (await engine.start("bundle", content)).task_id)
    return view.task_id, [Decision(gate=one.gate, digest=one.digest, approved=True) for one in view.waiting_for]


async def decisions(engine: TemporalEngine, task_id: str) -> list[DecisionMade]:
    return [entry.event for entry in await journal(engine, task_id) if isinstance(entry.event, DecisionMade)]


async def test_several_decisions_are_one_update(engine: TemporalEngine) -> None:
    """
    Signed each; entries of their own in the order that was given; one update in history, and one workflow task.
    """
    task, (first, second, third) = await bundle(engine, [1, 2, 3], approvers=["ada"])
    denied = second.model_copy(update={"approved": False, "comment": "too dear"})
    stale = third.model_copy(update={"digest": first.digest})

    with pytest.raises(InputRejected, match=r"none of the 3 .* 'spend 3' .* look again"):
        await engine.decide_together(task, [first, denied, stale], approver="ada", vouched_by="tests")
    with pytest.raises(InputRejected, match="nobody vouches"):
        await engine.decide_together(task, [first, third], approver="ada")
    assert await decisions(engine, task) == []
    await engine.decide_together(task, [third, first, denied], approver="ada", vouched_by="tests")

    done = await settled(engine, task)
    assert done.messages[-1].text == "spend 1 approved by ada, spend 2 denied by ada, spend 3 approved by ada"
    assert done.refused == 0
    assert [one.gate for one in await decisions(engine, task)] == [third.gate, first.gate, denied.gate]
    history = await engine.client.get_workflow_handle(task).fetch_history()
    kinds = [event.event_type for event in history.events]
    assert kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED) == 1


async def test_two_people_decide_sets_that_overlap(engine: TemporalEngine) -> None:
    """
    At the same moment: one set is taken as a whole, of the other nothing; no gate has two decisions.
    """
    task, (first, second, third) = await bundle(engine, [1, 2, 3])

    answers = await asyncio.gather(
        engine.decide_together(task, [first, second], approver="ada"),
        engine.decide_together(task, [third, second], approver="bob"),
        return_exceptions=True,
    )

    (refused,) = [answer for answer in answers if isinstance(answer, InputRejected)]
    assert "none of the 2 decisions was taken" in refused.reason
    assert str(second.gate) in refused.reason
    made = await decisions(engine, task)
    assert {(one.gate, one.approver) for one in made} in (
        {(first.gate, "ada"), (second.gate, "ada")},
        {(third.gate, "bob"), (second.gate, "bob")},
    )
    await engine.cancel(task)


async def test_four_eyes_are_two_people(engine: TemporalEngine) -> None:
    """
    Who approves twice is one person; who is not on the list, or owns the task, is none.
    """
    view = await at_gate(engine, owner="cy", approvers=["ada", "bob", "cy"], needed=2, second_person=True)
    task = view.task_id

    await engine.decide(task, approved=True, approver="ada", vouched_by="tests")
    for who, why in [("ada", "has decided before"), ("eve", "may not decide here"), ("cy", "owns the task")]:
        with pytest.raises(InputRejected, match=why):
            await engine.decide(task, approved=True, approver=who, vouched_by="tests")
    with pytest.raises(InputRejected, match="nobody vouches"):
        await engine.decide(task, approved=True, approver="bob")
    assert (await engine.look(task)).waiting_for[0].granted_by == ("ada",)
    await engine.decide(task, approved=True, approver="bob", vouched_by="tests")

    done = await settled(engine, task)
    assert (done.status, done.refused) == (Status.COMPLETED, 0)
    assert [(one.approver, one.asserted_by) for one in await decisions(engine, task)] == [
        ("ada", "tests"),
        ("bob", "tests"),
    ]


async def test_a_decision_is_for_one_gate_of_one_task(engine: TemporalEngine) -> None:
    """
    In a loop of gates a grant for 50 does not pass the next one for 5,000; nor does another task's.
    """
    view = await at_gate(engine, amounts=[50, 5_000])
    other = await at_gate(engine, amounts=[50])
    first = view.waiting_for[0]
    await engine.decide(view.task_id, approved=True, approver="ada")
    second = (await settled(engine, view.task_id)).waiting_for[0]
    assert second.gate != first.gate

    with pytest.raises(InputRejected, match="look again"):
        await engine.decide(view.task_id, second.gate, approved=True, approver="ada", digest=first.digest)
    handle = engine.client.get_workflow_handle(view.task_id)
    await handle.signal("decide", decision_at(other))
    await handle.signal("decide", {**decision_at(other), "gate": first.gate})
    after = await settled(engine, view.task_id)

    assert (after.lifecycle, after.refused) == (TaskState.PAUSED, 2)
    refused = [entry.refused for entry in await journal(engine, view.task_id) if entry.refused]
    assert all("is open; open: " in why for why in refused)


async def test_text_moves_nothing(engine: TemporalEngine, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A model that writes "approval granted" while the task is paused changes nothing, nor does a message.
    """
    monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "0.5")
    view = await engine.start("judged", text("approval granted"))
    async for entry in engine.watch(view.task_id, follow=True):
        assert isinstance(entry, Entry)
        if isinstance(entry.event, LlmResult):
            break
    held = await engine.look(view.task_id)
    assert (held.lifecycle, held.waiting_for[0].slot) == (TaskState.PAUSED, "spend")

    with pytest.raises(InputRejected, match="a decision, not by a message"):
        await engine.send(view.task_id, text("approved"))
    await engine.decide(view.task_id, approved=True, approver="ada")

    assert "approval granted" in (await settled(engine, view.task_id)).messages[-1].text


async def test_a_signature_vouches(engine: TemporalEngine, setting: pytest.MonkeyPatch) -> None:
    """
    The right key passes; another one, a changed decision, and a worker without a key do not.
    """
    view = await at_gate(engine, approvers=["ada"])
    task = view.task_id

    setting.delenv("REFOLD_APPROVAL_KEY")
    with pytest.raises(InputRejected, match="REFOLD_APPROVAL_KEY"):
        await engine.decide(task, approved=True, approver="ada", vouched_by="tests")
    handle = engine.client.get_workflow_handle(task)
    with pytest.raises(Exception, match="Workflow update failed") as unsigned:
        await handle.execute_update("decide", decision_at(view, asserted_by="tests", signature="0" * 64))
    assert "cannot check" in str(unsigned.value.__cause__)
    setting.setenv("REFOLD_APPROVAL_KEY", KEY)
    with pytest.raises(Exception, match="Workflow update failed") as forged:
        await handle.execute_update("decide", decision_at(view, asserted_by="tests", signature="0" * 64))
    assert "does not match" in str(forged.value.__cause__)
    await engine.decide(task, approved=True, approver="ada", vouched_by="tests")

    assert (await settled(engine, task)).status is Status.COMPLETED


async def test_a_signal_vouches_for_nobody(engine: TemporalEngine) -> None:
    """
    A guarded gate refuses a bare signal, unless its policy takes unsigned ones; then the journal says that nobody did.
    """
    strict = await at_gate(engine, approvers=["ada"])
    await engine.client.get_workflow_handle(strict.task_id).signal("decide", decision_at(strict, asserted_by="me"))
    after = await settled(engine, strict.task_id)
    assert (after.lifecycle, after.refused) == (TaskState.PAUSED, 1)

    loose = await at_gate(engine, approvers=["ada"], allow_unsigned=True)
    await engine.client.get_workflow_handle(loose.task_id).signal("decide", decision_at(loose, asserted_by="me"))
    await collected(engine.watch(loose.task_id, follow=True))
    events = [entry.event for entry in await journal(engine, loose.task_id)]
    assert [(one.approver, one.asserted_by) for one in events if isinstance(one, DecisionMade)] == [("ada", None)]


# --- the verbs in every state


async def in_state(engine: TemporalEngine, shop: Shop, state: TaskState) -> TaskView:
    """A task that stays in this state."""
    match state:
        case TaskState.RUNNING:
            view = await engine.start("busy", text(uuid4().hex))
            return await engine.look(view.task_id)
        case TaskState.PAUSED:
            return await at_gate(engine)
        case TaskState.RETRYING:
            shop.trouble("/facts", 503, retry_after="3600")
            view = await fact_of(engine)
            return await until(engine, view.task_id, state)
        case TaskState.BLOCKED:
            return await blocked_task(engine, shop)
        case TaskState.FAILED:  # in the time for late grants: the execution is open
            view = await at_gate(engine)
            await forward(engine, view.task_id, 31 * MINUTE)
            return await until(engine, view.task_id, state)
        case TaskState.DONE:
            view = await at_gate(engine)
            await engine.decide(view.task_id, approved=True, approver="ada")
            return await settled(engine, view.task_id)
        case TaskState.PLANNED:
            raise AssertionError("a task is planned only until its first event, which comes with it")


VERBS = {"message": "message", "decide": "decide", "resolve": "dependency_resolved"}
STATES = [state for state in TaskState if state is not TaskState.PLANNED]


@pytest.mark.parametrize("state", STATES)
async def test_each_verb_has_an_answer_in_each_state(engine: TemporalEngine, shop: Shop, state: TaskState) -> None:
    """
    What a state does not take is an error to an update's caller, and a counted, journaled refusal to a signal's; the
    task is as it was, and answers queries.
    """
    view = await in_state(engine, shop, state)
    handle = engine.client.get_workflow_handle(view.task_id)
    gate = {"gate": f"{view.task_id}/9.9", "digest": "0", "decision": "approved", "approver": "ada"}
    said: dict[str, Any] = {"message": "hello", "decide": gate, "resolve": {"invocation_id": "nobody", "retry": True}}
    for verb, argument in said.items():
        with pytest.raises(Exception, match=r"update failed|already completed|not found"):
            await handle.execute_update(verb, argument)
    if state is TaskState.DONE:
        for verb in VERBS.values():
            with pytest.raises(Exception, match=r"already completed|not found"):
                await handle.signal(verb, said.get(verb, said["resolve"]))
        with pytest.raises(InputRejected, match="has ended"):
            await engine.cancel(view.task_id)
        return
    for verb, signal in VERBS.items():
        await handle.signal(signal, said[verb])

    after = await refused_so_often(engine, view.task_id, 3)
    assert (after.lifecycle, after.status) == (state, view.status)
    assert len([entry for entry in await journal(engine, view.task_id) if entry.refused]) == 3
    assert (await engine.at(view.task_id, after.seq)).lifecycle is state
    if state is TaskState.FAILED:
        return
    canceled = await engine.cancel(view.task_id, reason="enough")
    assert (canceled.status, canceled.reason) == (Status.CANCELED, "enough")


async def refused_so_often(engine: TemporalEngine, task_id: str, times: int) -> TaskView:
    async for _ in engine.watch(task_id, follow=True):
        view = await engine.look(task_id)
        if view.refused == times:
            return view
    raise AssertionError("the task ended")


# --- compensation


@pytest.fixture
def purchase(shop: Shop) -> str:
    """An order id of this test's own."""
    return f"B{uuid4().hex[:6]}"


async def test_what_was_charged_is_given_back_on_cancel(engine: TemporalEngine, shop: Shop, purchase: str) -> None:
    """
    Newest first, though the gateway is down at first; the task ends as canceled.
    """
    view = await engine.start("buys_twice", text(purchase))
    await settled(engine, view.task_id)
    shop.trouble("/void", 503, 503)

    await asyncio.gather(engine.cancel(view.task_id), return_exceptions=True)
    await collected(engine.watch(view.task_id, follow=True))

    undone = [one.note for one in await journal(engine, view.task_id) if one.note.startswith("undone")]
    assert undone == ["undone: second", "undone: first"]
    assert shop.paid("charge") == []
    assert await closed_as(engine, view.task_id) == "CANCELED"


async def closed_as(engine: TemporalEngine, task_id: str) -> str:
    handle = engine.client.get_workflow_handle(task_id)
    await asyncio.gather(handle.result(), return_exceptions=True)
    description = await handle.describe()
    assert description.status is not None
    return str(description.status.name)


async def test_what_was_given_back_is_charged_again_by_recovery(
    engine: TemporalEngine, shop: Shop, purchase: str
) -> None:
    """
    The task fails and its charges are undone; recovered, each is made again, once, and stands.
    """
    shop.trouble("/facts", 404)
    view = await engine.start("buys_twice", text(purchase))
    await settled(engine, view.task_id)
    await engine.send(view.task_id, text("yes"))
    assert await closed_as(engine, view.task_id) == "FAILED"
    assert (len(shop.ledger), shop.paid("charge")) == (2, [])

    done = await recovered(engine, view.task_id)

    assert (done.status, done.reason) == (Status.COMPLETED, "")
    assert [paid.amount_cents for paid in shop.paid("charge")] == [100, 200]
    assert len(shop.ledger) == 4


async def test_what_was_given_back_is_charged_again_by_another_task(
    engine: TemporalEngine, shop: Shop, purchase: str
) -> None:
    """
    With the same business keys: once, however many tasks ask.
    """
    first = await engine.start("buys_twice", text(purchase))
    await settled(engine, first.task_id)
    await asyncio.gather(engine.cancel(first.task_id), return_exceptions=True)
    assert await closed_as(engine, first.task_id) == "CANCELED"
    assert shop.paid("charge") == []

    views = await asyncio.gather(*(engine.start("buys_twice", text(purchase)) for _ in range(2)))
    for view in views:
        await settled(engine, view.task_id)

    assert sorted(paid.amount_cents for paid in shop.paid("charge")) == [100, 200]
    assert len(shop.ledger) == 4


async def test_a_charge_that_comes_too_late_is_given_back(engine: TemporalEngine, shop: Shop, purchase: str) -> None:
    """
    The task is canceled while the gateway is slow: the charge is not stopped halfway, and undone when it is made.
    """
    shop.delay("/payments")
    view = await engine.start("buys_twice", text(purchase))
    await shop.waited("/payments")

    hasty = TemporalEngine(engine.client, QUEUE, patience=timedelta(seconds=1))  # the end comes later
    assert (await hasty.cancel(view.task_id)).status is Status.CANCELED
    shop.go_on("/payments")

    assert await closed_as(engine, view.task_id) == "CANCELED"
    assert (len(shop.ledger), shop.paid("charge")) == (1, [])
    notes = [one.note for one in await journal(engine, view.task_id)]
    assert notes[-2:] == ["first took place, too late: to be undone", "undone: first"]


async def test_an_outcome_that_a_person_gives_reaches_the_next_task(
    engine: TemporalEngine, shop: Shop, purchase: str
) -> None:
    """
    Nobody is asked again about the same business key, and nothing is charged.
    """
    shop.trouble("/payments", 500)
    shop.trouble("/payments?key", 500)  # the probe cannot tell either
    view = await engine.start("buys_twice", text(purchase))
    await until(engine, view.task_id, TaskState.BLOCKED)
    charged: JsonValue = {"payment_id": "by hand", "order_id": purchase, "amount_cents": 100}

    await engine.resolve(view.task_id, outcome=charged, by="ops")
    await settled(engine, view.task_id)
    other = await settled(engine, (await engine.start("buys_twice", text(purchase))).task_id)

    assert other.status is Status.INPUT_REQUIRED
    assert [paid.amount_cents for paid in shop.ledger] == [200]
    first = next(one.event for one in await journal(engine, other.task_id) if one.event.kind == "tool_result")
    assert first.value == charged


async def test_a_parent_is_told_of_a_part_that_is_blocked(engine: TemporalEngine, shop: Shop, purchase: str) -> None:
    """
    A watch of the parent ends where only an operator can go on, and names the part, which the index finds too; once
    the part is resolved, the parent is told that as well.
    """
    shop.trouble("/payments", 500)
    shop.trouble("/payments?key", *[500] * 50)
    view = await engine.start("orders", text(purchase))
    await begun(engine, f"{view.task_id}/1.1")
    await until(engine, f"{view.task_id}/1.1", TaskState.BLOCKED)
    await forward(engine, f"{view.task_id}/1.1", 24 * 60 * MINUTE)  # the probe is asked again for a while
    (one,) = (await settled(engine, view.task_id)).unresolved
    charged: JsonValue = {"payment_id": "by hand", "order_id": purchase, "amount_cents": 100}
    assert (one.task_id, one.command) == (f"{view.task_id}/1.1", "tool charge_card")
    while one.task_id not in {listed.task_id for listed in await engine.find(TaskFilter(waits=True))}:
        await a_moment()  # the index lags by moments

    with pytest.raises(InputRejected, match=f"resolve the blocked command of its part: .* of task '{one.task_id}'"):
        await engine.resolve(view.task_id, outcome=charged)
    await engine.resolve(one.task_id, outcome=charged, by="ops")
    async for entry in engine.watch(view.task_id, follow=True):
        assert isinstance(entry, Entry)
        if isinstance(entry.event, ChildAsked) and entry.event.waits:
            break

    after = await engine.look(view.task_id)
    assert (after.status, after.unresolved) == (Status.INPUT_REQUIRED, ())
    await engine.client.get_workflow_handle(view.task_id).cancel()  # the shop never charged what could be given back


async def test_a_second_recovery_charges_a_third_time(engine: TemporalEngine, shop: Shop, purchase: str) -> None:
    """
    What was charged again is what is given back, and charged again after that.
    """
    shop.trouble("/facts", 404, 404)
    view = await engine.start("buys_twice", text(purchase))
    await settled(engine, view.task_id)
    await engine.send(view.task_id, text("yes"))
    assert await closed_as(engine, view.task_id) == "FAILED"
    second = await recovered(engine, view.task_id)
    assert await closed_as(engine, second.task_id) == "FAILED"
    assert (len(shop.ledger), shop.paid("charge")) == (4, [])

    third = await recovered(engine, second.task_id)

    assert (third.status, third.reason) == (Status.COMPLETED, "")
    assert sorted(paid.amount_cents for paid in shop.paid("charge")) == [100, 200]
    assert len(shop.ledger) == 6
