"""Agents on a real server, with the scripted model and with one behind OpenAI's protocol."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

import activities
from refold import Status
from refold.core.chat import ToolReturn
from refold.effects import McpServer
from refold.engine import Tokens
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.services.mail import MailServer
from tests.services.openai_server import OpenAIServer, Trouble
from tests.services.shop import Shop
from tests.temporal import agents
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import settled, text
from workflows import order_desk

ROOT = Path(__file__).parents[2]
REFUND = """Order A1 was five too much.
-> find_order(order_id="A1"), look_up_route(order_id="A1")
-> pay_refund(order_id="A1", amount_cents=500)
-> send_mail(to="a1@example.org", subject="Your refund", text="500 cents are on their way.")
-> It is done: {pay_refund}
"""


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[Shop, MailServer, OpenAIServer]]:
    """A shop, its mail, and a model behind OpenAI's protocol."""
    with Shop() as shop, MailServer() as mail, OpenAIServer() as model, pytest.MonkeyPatch.context() as patch:
        for name, value in {**shop.environment, **mail.environment, **model.environment}.items():
            patch.setenv(name, value)
        shop.order("A1", paid_cents=5_000)
        yield shop, mail, model


@pytest.fixture(scope="module")
async def desks(client: Client, values: Folder, shop: object) -> AsyncIterator[dict[str, TemporalEngine]]:
    """Engines with workers, by their model; all that ended is replayed."""
    engines = {}
    for model in ("scripted:demo", "openai:demo"):
        queue = f"desk-{model.partition(':')[0]}"
        plugin = RefoldPlugin([order_desk, agents], [*activities.TOOLS, *agents.TOOLS], model=model, storage=values)
        engines[model] = (TemporalEngine(client, queue, patience=PATIENT), plugin, queue)
    (scripted, plugin, queue), (openai, other, other_queue) = engines.values()
    async with (
        make_worker(client, plugin, task_queue=queue),
        make_worker(client, other, task_queue=other_queue),
    ):
        yield {"scripted:demo": scripted, "openai:demo": openai}
    await replay_all(client, plugin, queue)
    await replay_all(client, other, other_queue)


@pytest.mark.parametrize("model", ["scripted:demo", "openai:demo"])
async def test_a_refund_at_the_desk(
    desks: dict[str, TemporalEngine], shop: tuple[Shop, MailServer, OpenAIServer], model: str
) -> None:
    """
    The same agent with either model: it looks up, waits for a person, pays once for both tasks, and writes a mail.
    """
    engine = desks[model]
    view = await settled(engine, (await engine.start("order_desk", text(REFUND))).task_id)
    (gate,) = view.waiting_for
    assert (view.status, gate.show) == (
        Status.INPUT_REQUIRED,
        {"tool": "pay_refund", "arguments": {"order_id": "A1", "amount_cents": 500}},
    )
    await engine.decide(view.task_id, approved=True, approver="Ann")
    view = await settled(engine, view.task_id)

    assert view.status is Status.COMPLETED
    assert view.messages[-1].text.startswith('It is done: {"')
    assert [payment.amount_cents for payment in shop[0].paid("refund")] == [500]
    assert shop[1].inbox[-1]["Subject"] == "Your refund"


async def test_a_provider_that_is_busy_or_cuts_its_stream_off(
    desks: dict[str, TemporalEngine], shop: tuple[Shop, MailServer, OpenAIServer]
) -> None:
    """
    429 and a broken stream are tried again by the task alone; each request is made once for each try.
    """
    server, engine = shop[2], desks["openai:demo"]
    before = len(server.requests)
    server.say(Trouble.status(429, retry_after="0"), Trouble(cut_after=1), "Hello.")
    view = await settled(engine, (await engine.start("order_desk", text("Hi"), stream=True)).task_id)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "Hello.")
    assert len(server.requests) - before == 3


async def test_what_stands_around_calls_in_the_worker(desks: dict[str, TemporalEngine]) -> None:
    """
    It changes what a model says before that is recorded; a cache in the worker answers a second task.
    """
    engine, word = desks["scripted:demo"], uuid4().hex
    said = f'Look it up.\n-> look_up(word="{word}")\n-> {{look_up}}'
    first = await agents.Clerk.invoke(engine, said)
    second = await agents.Clerk.invoke(engine, said)
    snapshot = await engine.at(second.task_id, second.task.seq)

    assert (first.text, second.text) == (f"Please: {word}!", f"Please: {word}!")
    assert agents.looked_up.count(word) == 1
    assert [one.value for one in snapshot.threads["main"].said if isinstance(one, ToolReturn)] == [f"{word}!"]


async def test_a_grant_that_changes_the_arguments(desks: dict[str, TemporalEngine]) -> None:
    """
    What was changed is called; the task goes on with the next message, and tokens are seen by who watches.
    """
    engine, word = desks["scripted:demo"], uuid4().hex
    script = 'Write.\n-> write_down(word="wrong")\n-> {write_down}'
    view = await settled(engine, (await engine.start("clerk", text(script), stream=True)).task_id)
    await engine.decide(view.task_id, approved=True, approver="Ann", changes={"arguments": {"word": word}})
    view = await settled(engine, view.task_id)

    assert (view.status, agents.looked_up[-1]) == (Status.INPUT_REQUIRED, f"written {word}")
    seen = [one async for one in agents.Clerk.stream(engine, "Bye.", task_id=view.task_id)]
    assert any(isinstance(one, Tokens) for one in seen) or len(seen) == 2
    assert (await engine.look(view.task_id)).messages[-1].text == "Please: You said: Bye."


async def test_no_gate_opens_for_a_call_that_the_worker_would_refuse(desks: dict[str, TemporalEngine]) -> None:
    """
    Types of the library are checked in the task as in the worker, and the model tries again.
    """
    engine = desks["scripted:demo"]
    wrong, right = 'day="soon", at="noon", price=[]', 'day="2026-12-24", at="2026-12-24T20:00:00Z"'
    script = f"Book.\n-> book({wrong})\n-> book({right})\n-> {{book}}"
    view = await settled(engine, (await engine.start("waiter", text(script))).task_id)
    (gate,) = view.waiting_for
    await engine.decide(view.task_id, approved=True, approver="Ann")
    view = await settled(engine, view.task_id)
    snapshot = await engine.at(view.task_id, view.seq)
    said = [str(one.value) for one in snapshot.threads["main"].said if isinstance(one, ToolReturn)]

    assert (gate.slot, view.status, agents.looked_up[-1]) == ("book", Status.COMPLETED, "booked 24.12.2026")
    assert said[0].startswith("tool 'book': day is 'soon', and must be datetime.date; at is 'noon', and must be ")
    assert said[1:] == ["booked"]


async def test_tools_of_an_mcp_server(
    client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Their definitions come from the server when the task begins; a person decides, and each is called as it was shown.
    """
    monkeypatch.setenv("REFOLD_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    notes = tmp_path / "notes"
    args = ("-m", "tests.services.mcp_server")
    server = McpServer(name="shop", command=sys.executable, args=args, cwd=ROOT, env={"MCP_LEDGER": str(notes)})
    plugin = RefoldPlugin([agents], agents.TOOLS, model="scripted:demo", storage=values, mcp=[server])
    engine = TemporalEngine(client, "buying", patience=PATIENT)
    script = 'Shoes.\n-> shop__search(words="shoes")\n-> shop__buy(sku="shoes-1")\n-> {shop__buy}.'
    async with make_worker(client, plugin, task_queue="buying"):
        view = await settled(engine, (await engine.start("buyer", text(script))).task_id)
        assert [(wait.slot, wait.show) for wait in view.waiting_for] == [
            ("shop.buy", {"tool": "shop.buy", "arguments": {"sku": "shoes-1"}})
        ]
        await engine.decide(view.task_id, approved=True, approver="Ann")
        view = await settled(engine, view.task_id)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "bought shoes-1.")
    assert len(notes.read_text().splitlines()) == 1


async def test_a_task_goes_on_where_another_one_ended(desks: dict[str, TemporalEngine]) -> None:
    """
    The conversation is read from the ended task, and goes along with the start.
    """
    engine = desks["openai:demo"]
    desk = order_desk.OrderDesk
    first = await desk.invoke(engine, "I am Ada.", owner="Ada")
    second = await desk.invoke(engine, "Who am I?", owner="Ada", previous=first.task_id)
    snapshot = await engine.at(second.task_id, second.task.seq)

    assert len(snapshot.threads["main"].said) == 4
    assert (first.status, second.status) == (Status.COMPLETED, Status.COMPLETED)
