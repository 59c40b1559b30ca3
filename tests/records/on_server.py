"""What is recorded as histories: tasks on a real Temporal server. `python -m tests.records.record --histories NAME`.

Tools and models are stand-ins: what they answer is in the history.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError
from temporalio.testing import TimeSkipper
from temporalio.worker import Worker

from activities.dates import weekday
from refold import Content, InputRejected, tool
from refold.effects import Never, TryLater
from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import dev_server
from tests.records import served
from tests.records.replaying import HISTORIES, SKILLS, VALUES, Replaying, values_in, write, write_seen

PATIENT = timedelta(seconds=60)
ORDER = {"order_id": "A1", "customer": "a1@example.org", "paid_cents": 50_000}
PAID = {"payment_id": "P1", "order_id": "A1", "amount_cents": 1_999}

calls: Counter[str] = Counter()
trouble: set[str] = set()
"""What is down, by `how`."""


@tool(effect="idempotent", name="obey")
async def obey(how: str, size: int = 0) -> str:
    """Do as it is told."""
    calls[how] += 1
    if how == "never" or how in trouble:
        raise Never("the account is closed") if how == "never" else TryLater("it is down")
    if how == "busy" and calls[how] % 2:
        raise TryLater("it is busy")
    if how == "endless":
        await asyncio.Event().wait()
    return "x" * size if size else how


@tool(effect="at_most_once", name="mail")
async def mail(to: str) -> None:
    """Write a mail, unless that is in trouble."""
    if "mail" in trouble:
        raise Never("no such mailbox")


@tool(effect="read_only", name="find_order")
async def find_order(order_id: str) -> dict[str, Any]:
    """An order."""
    return {**ORDER, "order_id": order_id}


@tool(effect="at_most_once", name="pay_refund")
async def pay_refund(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Pay back."""
    return {**PAID, "order_id": order_id, "amount_cents": amount_cents}


@tool(effect="idempotent", name="give_back")
async def give_back(result: dict[str, Any]) -> None:
    """Undo a charge."""


@tool(effect="compensate", undo=give_back, name="charge_card")
async def charge_card(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge."""
    return {**PAID, "order_id": order_id, "amount_cents": amount_cents}


@tool(effect="idempotent", name="send_mail")
async def send_mail(to: str, subject: str, text: str) -> None:
    """Write a mail, unless that is in trouble."""
    if "mail" in trouble:
        raise Never("no such mailbox")


@tool(effect="read_only", name="define_word")
async def define_word(word: str) -> str:
    """Define a word."""
    return "the tide going out"


def _lookup(topic: str) -> Any:
    @tool(effect="read_only", name=f"look_up_{topic}")
    async def look_up(order_id: str) -> int:
        """Look a fact up."""
        return len(topic)

    return look_up


TOPICS = ("stock", "price", "weight", "size", "route", "weather", "customs", "rating", "warranty", "discount")
TOOLS: list[Any] = [
    obey, mail, find_order, pay_refund, give_back, charge_card, send_mail, define_word, weekday,
    served.bill, served.void, served.weather, *map(_lookup, TOPICS),
]  # fmt: skip


@activity.defn
async def multiply(a: int, b: int) -> int:
    """An activity that was there before refold."""
    return a * b


@workflow.defn
class Letter:
    """A workflow that was there before refold."""

    @workflow.run
    async def run(self, name: str) -> str:
        return f"Dear {name}"


class On:
    """A server to play on.

    Args:
        engine: Over it.
        restless: Over it, too; its tasks go on in a new run at every quiet moment.
    """

    def __init__(self, engine: TemporalEngine, restless: TemporalEngine) -> None:
        self.engine, self.restless = engine, restless

    async def start(self, task_id: str, skill: str, said: Any = "go", **more: Any) -> TaskView:
        """The task, once it waits or has ended."""
        engine = self.restless if more.pop("restless", False) else self.engine
        await engine.start(skill, _content(said), task_id=task_id, **more)
        return await self.settled(task_id)

    async def settled(self, task_id: str) -> TaskView:
        async for _ in self.engine.watch(task_id):
            pass
        return await self.engine.look(task_id)

    async def until(self, task_id: str, lifecycle: str) -> TaskView:
        """The task, once it is in this state."""
        return await self.once(task_id, lambda view: view.lifecycle == lifecycle)

    async def once(self, task_id: str, holds: Callable[[TaskView], bool]) -> TaskView:
        """The task, once this holds for it."""
        while not holds(view := await self.engine.look(task_id)):  # noqa: ASYNC110 - it is the server that knows
            await asyncio.sleep(0.02)
        return view

    async def say(self, task_id: str, said: Any, **more: Any) -> TaskView:
        await self.engine.send(task_id, _content(said), **more)
        return await self.settled(task_id)

    async def refused(self, asked: Awaitable[Any]) -> None:
        try:
            await asked
        except InputRejected:
            return
        raise AssertionError("it was taken")

    async def decide(self, task_id: str, by: str = "ada", approved: bool = True, **more: Any) -> TaskView:
        await self.engine.decide(task_id, approved=approved, approver=by, **{"vouched_by": "key", **more})
        return await self.settled(task_id)

    async def over(self, task_id: str) -> None:
        """Comes back when nothing goes on for the task any more: what it did is undone."""
        with suppress(WorkflowFailureError):
            await self.engine.client.get_workflow_handle(task_id).result()

    async def forward(self, task_id: str, seconds: float) -> None:
        handle = self.engine.client.get_workflow_handle(task_id)
        with suppress(RPCError):  # it may end meanwhile
            await TimeSkipper(self.engine.client).fast_forward(handle, timedelta(seconds=seconds))

    async def signal(self, task_id: str, name: str, said: Any) -> None:
        await self.engine.client.get_workflow_handle(task_id).signal(name, said)


def _content(said: Any) -> Content:
    return Content.from_text(said) if isinstance(said, str) else Content.from_data(said)


# --- the scenarios; each task's id begins with the scenario's name


async def hello(on: On) -> None:
    await on.start("hello", "hello", "Ada", stream=True)


async def planner(on: On) -> None:
    await on.start("planner", "planner", "When?\n-> weekday(day=1, month=1, year=2026)\n-> On a {weekday}.")


async def research_loop(on: On) -> None:
    for name in ("research_loop", "research_loop_steps", "research_loop_table"):
        await on.start(name, name, "Tides")
        await on.say(name, "For sailors")


async def research_in_runs(on: On) -> None:
    await on.start("research_in_runs", "research_loop_steps", "Tides", restless=True, context="C1", owner="olga")
    await on.say("research_in_runs", "For sailors", delivery_id="d1")


REFUND = {"order_id": "A1", "amount_cents": 1_999, "reason": "broken"}


async def refund(on: On) -> None:
    await on.start("refund", "refund", REFUND, owner="olga", started_by="eve")
    await on.decide("refund", comment="fine")


async def refund_denied(on: On) -> None:
    await on.start("refund_denied", "refund", {**REFUND, "amount_cents": 20_000}, owner="olga")
    await on.decide("refund_denied", approved=False, comment="no")


async def refund_late(on: On) -> None:
    view = await on.start("refund_late", "refund", REFUND)
    await on.forward("refund_late", 31 * 60)
    await on.until("refund_late", "failed")
    gate = view.waiting_for[0]
    await on.engine.decide("refund_late", gate.gate, approved=True, approver="ada", digest=gate.digest)
    await on.engine.recover("refund_late", by="ops")
    await on.settled("refund_late.r1")


async def order_desk(on: On) -> None:
    script = """My order came broken.
-> find_order(order_id="A1"), look_up_route(order_id="A1")
-> pay_refund(order_id="A1", amount_cents=500)
-> send_mail(to="a1@example.org", subject="Refund", text="500 cents.")
-> It is on its way.
"""
    await on.start("order_desk", "order_desk", script)
    await on.decide("order_desk")


async def forty_steps(on: On) -> None:
    errand = {"order_id": "A1", "amount_cents": 500, "customer": "a1@example.org", "steps": 5}
    await on.start("forty_steps", "forty_steps", errand)


async def react(on: On) -> None:
    await on.start("react", "react", "Please define ebb")


async def talk(on: On) -> None:
    await on.start("talk", "r_talk")
    await on.refused(on.engine.send("talk", _content("36"), slot="nobody"))
    await on.say("talk", "Ada", delivery_id="d1", message_id="m1", sender="ada")
    await on.engine.send("talk", _content("Ada"), delivery_id="d1")
    await on.signal("talk", "message", "not a number")
    await on.signal("talk", "message", {"data": {"years": 36}, "slot": "age"})
    await on.settled("talk")


async def early(on: On) -> None:
    await on.engine.start("r_counts", _content("call"), task_id="early")
    await on.engine.send("early", _content("one"), early=True)
    await on.settled("early")
    await on.signal("early", "message", {"text": "two", "early": True})
    await on.say("early", "stop")


async def gather(on: On) -> None:
    await on.start("gather", "r_gather", "a busy b")
    await on.start("gather-caught", "r_gather", "a never")


async def parallel(on: On) -> None:
    await on.start("parallel", "r_parallel")


async def sleeps(on: On) -> None:
    await on.engine.start("r_patient", _content("go"), task_id="sleeps")
    await on.until("sleeps", "running")
    await on.forward("sleeps", 86_401)
    await on.settled("sleeps")


async def sleeps_through_runs(on: On) -> None:
    await on.restless.start("r_patient", _content("go"), task_id="sleeps_through_runs")
    await on.until("sleeps_through_runs", "running")
    await on.forward("sleeps_through_runs", 86_401)
    await on.settled("sleeps_through_runs")


async def large(on: On) -> None:
    await on.start("large", "r_calls", "large")


async def fails(on: On) -> None:
    await on.start("fails", "r_calls", "never")
    trouble.add("down")
    await on.start("fails-after-retries", "r_calls", "down")
    trouble.clear()
    await on.engine.recover("fails-after-retries")
    await on.settled("fails-after-retries.r1")


async def rejects(on: On) -> None:
    await on.start("rejects", "r_rejects", "this")


async def bug(on: On) -> None:
    await on.start("bug", "r_bug")
    await on.say("bug", "0")


async def canceled(on: On) -> None:
    await on.engine.start("r_calls", _content("endless"), task_id="canceled")
    await on.until("canceled", "running")
    await on.once("canceled", lambda _: bool(calls["endless"]))
    await on.engine.cancel("canceled", reason="enough")
    await on.settled("canceled")
    await on.start("canceled-by-signal", "r_talk")
    await on.signal("canceled-by-signal", "cancel", "stop")
    await on.settled("canceled-by-signal")


async def blocked(on: On) -> None:
    trouble.add("down")
    for name in ("blocked-given", "blocked-again", "blocked-probed"):
        await on.engine.start("r_blocks", _content("down"), task_id=name)
        await on.until(name, "blocked")
    await on.engine.resolve("blocked-given", outcome="it was done", by="ops", comment="I looked")
    await on.settled("blocked-given")
    await on.forward("blocked-probed", 300)
    trouble.clear()
    await on.engine.resolve("blocked-again", retry=True, by="ops")
    await on.settled("blocked-again")
    await on.forward("blocked-probed", 3600)
    await on.settled("blocked-probed")


async def gates(on: On) -> None:
    await on.start("gates", "r_gates")
    await on.signal("gates", "decide", {"gate": "gates/1.1", "digest": "0", "decision": "approved", "approver": "ada"})
    await on.refused(on.decide("gates", by="eve"))
    await on.decide("gates", by="ada")
    await on.decide("gates", by="bob", changes={"cents": 4})
    view = await on.decide("gates", by="ada", comment="as changed")
    gate = view.waiting_for[0]
    no = {"gate": gate.gate, "digest": gate.digest, "decision": "denied", "approver": "eve", "comment": "no"}
    await on.signal("gates", "decide", no)
    await on.settled("gates")


async def gate_reminded(on: On) -> None:
    await on.start("gate_reminded", "r_gates")
    await on.forward("gate_reminded", 16 * 60)
    await on.decide("gate_reminded", by="ada")
    await on.forward("gate_reminded", 31 * 60)
    await on.over("gate_reminded")


async def compensation(on: On) -> None:
    trouble.add("mail")
    await on.start("compensation", "r_buys", "ada@example.org")
    await on.decide("compensation")
    await on.over("compensation")
    trouble.clear()
    await on.engine.recover("compensation", by="ops")
    await on.settled("compensation.r1")
    await on.start("compensation-denied", "r_buys", "bob@example.org", restless=True)
    await on.decide("compensation-denied", approved=False)
    await on.over("compensation-denied")


async def forks(on: On) -> None:
    await on.start("forks", "r_buys", "eve@example.org", restless=True)
    await on.engine.fork("forks", at=1, new_id="forks.dry", by="olga")
    await on.settled("forks.dry")
    await on.engine.fork("forks", at=2, live=True, new_id="forks.live")
    await on.settled("forks.live")
    await on.decide("forks.live")
    await on.engine.cancel("forks", reason="the branch did it")
    await on.over("forks")


async def parts(on: On) -> None:
    await on.start("parts", "r_whole", "r_talk", owner="olga", context="C1")
    await on.once("parts", lambda view: bool(view.waiting_for))
    await on.engine.send("parts", _content("Ada"))
    await on.once("parts", lambda view: [wait.slot for wait in view.waiting_for] == ["age"])
    await on.engine.send("parts", _content({"years": 36}), slot="age")
    await on.until("parts", "done")


async def parts_failed(on: On) -> None:
    trouble.add("mail")
    await on.start("parts_failed", "r_whole", "r_buys")
    await on.once("parts_failed", lambda view: bool(view.waiting_for))
    await on.engine.decide("parts_failed", approved=True, approver="ada")
    await on.until("parts_failed", "failed")
    await on.over("parts_failed/1.1")
    await on.over("parts_failed")
    trouble.clear()
    await on.engine.recover("parts_failed")
    await on.until("parts_failed.r1", "done")


SCRIPT = """How is it?
-> weather(city="Oslo", days=3)
-> weather(city="Rome"), weather(city="Bern")
-> So it rains.
"""


async def chat(on: On) -> None:
    await on.start("chat", "r_chats", SCRIPT)
    await on.say("chat", 'And the weather in "Kiel"?')
    await on.say("chat", "bye")
    await on.start("chat-next", "r_chats", "Hello again", previous="chat", stream=True)
    await on.say("chat-next", "bye")


async def chat_in_runs(on: On) -> None:
    await on.start("chat_in_runs", "r_chats", SCRIPT, restless=True)
    await on.say("chat_in_runs", "Thanks.")
    await on.say("chat_in_runs", "bye")


async def contract(on: On) -> None:
    await on.start("contract", "r_contract", "tea", restless=True)
    await on.say("contract", "green")
    await on.start("contract-overstepped", "r_contract", "tea")
    await on.say("contract-overstepped", "overstep")


async def counts(on: On) -> None:
    await on.start("counts", "r_counts", restless=True)
    for said in ("a", "b", "c"):
        await on.signal("counts", "message", said)
    await on.say("counts", "call")
    await on.say("counts", "stop")


async def raw(on: On) -> None:
    client = on.engine.client
    await client.start_workflow("hello", "Ada", id="raw", task_queue=on.engine.task_queue)
    await on.settled("raw")
    await client.start_workflow("refund", {"order_id": ""}, id="raw-unfit", task_queue=on.engine.task_queue)
    await on.settled("raw-unfit")


async def left_open(on: On) -> None:
    await on.start("left_open", "r_gates")


SCENARIOS: Sequence[Callable[[On], Awaitable[None]]] = (
    hello, planner, research_loop, research_in_runs, refund, refund_denied, refund_late, order_desk, forty_steps,
    react, talk, early, gather, parallel, sleeps, sleeps_through_runs, large, fails, rejects, bug, canceled, blocked,
    gates, gate_reminded, compensation, forks, parts, parts_failed, chat, chat_in_runs, contract, counts, raw,
    left_open,
)  # fmt: skip


# --- recording


async def record(names: Sequence[str]) -> None:
    """Play the scenarios of these names, as regular expressions, on a server, and keep the histories of their tasks."""
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {"REFOLD_LEDGER": f"{scratch}/ledger.db", "REFOLD_APPROVAL_KEY": "key-of-the-records"}
        stored = Path(scratch) / "values"
        stored.mkdir()
        settings = {"history.workflowIdReuseMinimalInterval": '"0s"'}
        async with dev_server(time_skipping=True, settings=settings) as server:
            values = Folder(stored)
            client = await Client.connect(
                server.address, namespace=server.namespace, data_converter=data_converter(values)
            )
            plugin = RefoldPlugin(SKILLS, TOOLS, model="scripted:demo", storage=values)
            more: dict[str, Any] = {"activities": [multiply], "workflows": [Letter]}
            worker = make_worker(client, plugin, task_queue="records", **more)
            async with _running(worker):
                engine = TemporalEngine(client, "records", patience=PATIENT)
                on = On(engine, TemporalEngine(client, "records", events_per_run=1, patience=PATIENT))
                for scenario in SCENARIOS:
                    if not names or any(re.fullmatch(name, scenario.__name__) for name in names):
                        print(scenario.__name__, flush=True)  # noqa: T201 - tells who records
                        await asyncio.wait_for(scenario(on), 120)
                        await _keep(on, scenario.__name__, stored)


@asynccontextmanager
async def _running(worker: Worker) -> AsyncIterator[None]:
    """Not `async with worker`: where the worker cannot start, that waits for its end for ever."""
    running = asyncio.create_task(worker.run())
    while not worker.is_running:
        if running.done():
            running.result()
        await asyncio.sleep(0.02)
    try:
        yield
    finally:
        await worker.shutdown()
        await running


async def _keep(on: On, scenario: str, stored: Path) -> None:
    client = on.engine.client
    found = [one async for one in _listed(client, scenario)]
    runs: dict[str, list[Any]] = {}
    for one in sorted(found, key=lambda one: (one.id, one.start_time, one.history_length)):
        runs.setdefault(one.id, []).append(one)
    for task_id, several in runs.items():
        told = [entry.model_dump(mode="json") async for entry in on.engine.journal(task_id)]
        seen: list[dict[str, Any]] = []
        for number, one in enumerate(_in_order(several), 1):
            history = await client.get_workflow_handle(task_id, run_id=one.run_id).fetch_history()
            with tempfile.TemporaryDirectory() as folder:
                replayed = (await Replaying(Path(folder), stored).replay(history))[history.run_id]
            if isinstance(replayed, Exception):
                raise replayed
            seen += replayed.entries
            name = task_id.replace("/", "_") + (f".run{number}" if len(several) > 1 else "")
            write(name, history)
            write_seen(name, replayed)
        assert seen == told, f"the replay of {task_id} tells another journal than the task did"
    _keep_values(stored)


def _in_order(several: list[Any]) -> list[Any]:
    return sorted(several, key=lambda one: one.start_time)


async def _listed(client: Client, scenario: str) -> AsyncIterator[Any]:
    ours = {cls.type_name for cls in _classes()}
    await asyncio.sleep(1.5)  # visibility lags a little
    async for one in client.list_workflows(f"WorkflowId STARTS_WITH '{scenario}'"):
        mine = re.fullmatch(rf"{scenario}([-./].*|_steps|_table)?", one.id)
        if mine and one.workflow_type in ours:
            yield one


def _classes() -> list[Any]:
    from refold.temporal import workflows_of

    return list(workflows_of(SKILLS))


def _keep_values(stored: Path) -> None:
    """Keep the values that replays of the recorded histories read."""
    needed = {key for path in HISTORIES.glob("*.json.gz") for key in values_in(path)}
    for path in sorted(path for path in stored.rglob("*") if path.name in needed):
        kept = VALUES / path.relative_to(stored)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(path.read_bytes())
