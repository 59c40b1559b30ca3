"""Gates, retries, blocked tasks and compensation on a real Temporal server, whose clock is moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from refold import Content, DecisionMade, InputRejected, Status, TaskState
from refold.core.commands import CallTool, Notify
from refold.core.events import CancelRequested, DependencyResolved, LlmResult
from refold.core.journal import Entry
from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.storage import Folder
from tests.services.mail import MailServer
from tests.services.shop import Shop
from tests.temporal import gate_skills, skills
from tests.temporal.conftest import replay_all
from tests.temporal.test_task import collected, settled, text
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
    tools = [*gate_skills.TOOLS, *refund_tools(), skills.endless]
    plugin = RefoldPlugin([gate_skills, refund, skills.BusyWorkflow], tools, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE)
    await replay_all(client, plugin, QUEUE)


def refund_tools() -> list[Any]:
    """What `refund` calls besides."""
    return [refund.find_order, refund.pay_refund]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The shop and its gateway."""
    with Shop() as shop:
        for name, value in shop.environment.items():
            monkeypatch.setenv(name, value)
        yield shop


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
    with pytest.raises(InputRejected, match="has failed and is not over"):
        await engine.recover(view.task_id)
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
