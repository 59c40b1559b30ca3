"""What a sweep awaits, and where it kills: with tasks in memory, and workers that only say that they were killed."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from refold import Content, Contract, Ctx, GatePolicy, Transition, flow_skill, step, tool
from refold.callbacks.address import token_of
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK, CallTool
from refold.engine import Engine, Listed, Place, TaskFilter, TaskView
from refold.testing import FakeEngine, transient, unknown
from refold.testing.crash_sweep import CRASH_AT, CrashSweep, Kind, Point, SweepFailed, in_one_order

UNDONE: list[str] = []


@tool(effect="idempotent")
def unbook(result: str) -> None:
    """Cancel a booking."""
    UNDONE.append(result)


@tool(effect="compensate", undo=unbook)
def book() -> str:
    """Book a room."""
    return "room 1"


@flow_skill(id="books")
class Books:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        await ctx.tool(book)
        return ctx.fail("no breakfast")


class Worker:
    """A worker that has said that it polls; where it is told to crash it does, else it runs until it is killed."""

    def __init__(self, crash_at: str) -> None:
        self.ended = asyncio.Event()
        self.returncode: int | None = None
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(b"ready\n")
        self.stdout.feed_eof()
        if crash_at:
            self.send_signal(signal.SIGKILL)

    def send_signal(self, signal: int, /) -> None:
        self.end(-signal)

    def end(self, code: int) -> None:
        self.returncode = code
        self.ended.set()

    async def wait(self) -> int:
        await self.ended.wait()
        assert self.returncode is not None
        return self.returncode


@pytest.fixture
def told() -> list[str]:
    """Where the workers were told to crash."""
    return []


def sweep(engine: FakeEngine, told: list[str], broken: int | None = None) -> CrashSweep:
    """A sweep whose worker number `broken`, from 1, ends by itself with 3."""

    async def start(command: Sequence[str], env: Mapping[str, str]) -> Worker:
        told.append(env[CRASH_AT])
        worker = Worker(env[CRASH_AT])
        if len(told) == broken:
            worker.end(3)
        return worker

    return CrashSweep(engine, worker=[], before_each=UNDONE.clear, told=lambda: [*UNDONE], start=start)


class SlowToUndo(FakeEngine):
    """An engine whose task is not over when somebody asks for the first time, and is soon after."""

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        found = await super().find(wanted, after=after, limit=limit)
        for task in found:
            if not task.over:
                unbook(result="room 1")
                await self.reply(task.task_id, "undo book")
        return found


async def test_a_run_lasts_until_its_task_is_over(told: list[str]) -> None:
    """
    A failed task is awaited until its effects are undone, so the services are counted, and the journal read, after it.
    """
    report = await sweep(SlowToUndo([Books], answers={"book": "room 1"}), told).run(
        "books", Content.from_text("go"), points=lambda points: points[:0]
    )

    assert report.outcome.told == ["room 1"]
    assert len(report.outcome.journal) == 3


async def test_workers_are_killed_around_compensation_too(told: list[str]) -> None:
    """
    By the command's own id: it is that of the effect which is undone, wherever the task failed.
    """
    report = await sweep(FakeEngine([Books], tools=[book, unbook]), told).run("books", Content.from_text("go"))

    assert [str(point) for point in report.points] == [
        "before 1.1", "performed 1.1", "after 1.1", "entry 1",
        "before 1.1~undo", "performed 1.1~undo", "after 1.1~undo", "entry 3",
    ]  # fmt: skip
    assert [at.partition(" ")[0] + at[at.index("/") :] for at in told if at] == [
        f"{kind}/1.1{undo}" for undo in ("", "~undo") for kind in ("before", "performed", "after")
    ]


@flow_skill(id="pays")
class Pays:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        await ctx.approve("pay", "Pay?", policy=GatePolicy(notify_at_open=True))
        return ctx.complete()


class SlowToNotify(FakeEngine):
    """An engine whose approvers have not been told of a gate when somebody looks for the first time, and are soon."""

    async def start(self, skill: str, content: Content, **options: Any) -> TaskView:
        self.auto = False
        view = await super().start(skill, content, **options)
        await self._one()
        return view

    async def look(self, task_id: str) -> TaskView:
        view = await super().look(task_id)
        await self.settle()
        return view


async def test_nobody_decides_at_a_gate_before_its_approvers_were_told(told: list[str]) -> None:
    """
    Else the journal has the decision and the notification in either order, and a kill would seem to change it. What
    tells the approvers is no point.
    """

    async def approve(engine: Engine, view: TaskView) -> None:
        assert view.pending == ()
        await engine.decide(view.task_id, approved=True, approver="ada")

    report = await sweep(SlowToNotify([Pays]), told).run("pays", Content.from_text("go"), script=approve)

    assert [str(point) for point in report.points] == [f"entry {seq}" for seq in range(1, len(report.outcome.journal))]
    assert isinstance(last := report.outcome.journal[-1], dict)
    assert str(last["event"]).startswith("{'kind': 'decision")


async def test_a_script_that_fails_ends_the_run_and_its_workers(told: list[str]) -> None:
    """
    Its error is raised, and no worker is started after it.
    """

    async def approve_once(engine: Engine, view: TaskView) -> None:
        if len(told) > 1:
            raise ValueError("the second run has no answer")
        await engine.decide(view.task_id, approved=True, approver="ada")

    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="the second run has no answer"):
        await sweep(FakeEngine([Pays]), told).run(
            "pays", Content.from_text("go"), script=approve_once, points=lambda _: [Point(Kind.ENTRY, 9)]
        )

    assert not [one for one in asyncio.all_tasks() - before if "crash_sweep" in str(one)]
    assert len(told) == 2


@pytest.mark.parametrize("broken", [1, 3], ids=["undisturbed", "after the kill"])
async def test_a_worker_that_ends_by_itself_ends_the_run(broken: int, told: list[str]) -> None:
    """
    At once, with its exit code: nobody would go on with the task.
    """

    async def approve(engine: Engine, view: TaskView) -> None:
        if len(told) + 1 >= broken:
            await asyncio.Event().wait()
        await engine.decide(view.task_id, approved=True, approver="ada")

    with pytest.raises(AssertionError, match="the worker ended with 3"):
        await sweep(FakeEngine([Pays]), told, broken).run(
            "pays", Content.from_text("go"), script=approve, points=lambda points: points[-1:]
        )


class Paying(BaseModel):
    """What the steps of a skill with a contract share."""

    model_config = ConfigDict(frozen=True)

    text: str
    receipt: str = ""


class Paid(BaseModel):
    cents: int


@tool(effect="idempotent")
def invoice(url: str) -> str:
    """Send an invoice, with the address that takes the payment."""
    return f"sent {url}"


@flow_skill(id="invoices", contract=Contract(state=Paying, begins=lambda content, ctx: Paying(text=content.text)))
class Invoices:
    @step(start=True, writes=["receipt"])
    async def send(self, ctx: Ctx) -> Transition:
        paid = await ctx.callback("paid", expires_s=3600)
        await ctx.tool(invoice, url=paid.url)
        ctx.say(f"Pay at {paid.url}")
        payment = await ctx.ask("paid", "the payment", expect=Paid, callback=paid)
        return ctx.complete("Thanks.").patch(receipt=f"{payment.cents} cents")


class Ticking(FakeEngine):
    """An engine whose clock goes on between the runs, until the next retry is over, too."""

    async def start(self, skill: str, content: Content, **options: Any) -> TaskView:
        view = await super().start(skill, content, **options)
        await self.advance(47)
        return view


async def test_times_and_addresses_of_callbacks_are_of_one_run_alone(told: list[str]) -> None:
    """
    A skill with a contract, a retry and a callback passes; what its runs leave behind is the same.
    """

    async def pays(engine: Engine, view: TaskView) -> None:
        [digest] = [wait.callback for wait in view.waiting_for]
        slot = next(slot for slot in slots(view) if text_hash(slot) == digest)
        await engine.send(view.task_id, Content.from_data({"cents": 5}), slot=slot, early=True)

    def slots(view: TaskView) -> list[str]:
        return [f"{CALLBACK}:{token_of(message.text)}" for message in view.messages if "/callbacks/" in message.text]

    tries: list[str] = []

    def once_busy(command: CallTool) -> Any:
        tries.append(command.id)
        return transient("503") if len(tries) % 2 else f"sent {command.args['url']}"

    report = await sweep(Ticking([Invoices], answers={"invoice": once_busy}), told).run(
        "invoices", Content.from_text("go"), script=pays
    )

    assert len(report.points) == 8
    assert "ADDRESS paid" in str(report.outcome.view)
    assert "invoice: 503; retry 1 of 3 in … s" in str(report.outcome.journal)


def journal(*outcomes: str) -> list[dict[str, Any]]:
    """Asks for two tools at once, which come back in this order; asks for one more; hears a message."""
    events = [{"kind": "user_message"}, *({"kind": "tool_result", "result": one} for one in outcomes)]
    entries: list[dict[str, Any]] = [{"seq": seq, "event": event} for seq, event in enumerate(events, start=1)]
    entries[0]["commands"], entries[2]["commands"] = ["a and b"], ["c"]
    return [*entries, {"seq": len(entries) + 1, "event": {"kind": "user_message"}}]


def test_what_goes_on_at_once_may_come_back_in_any_order() -> None:
    """
    But nothing before what was asked for, and no outcome as another.
    """
    assert in_one_order(journal("a", "b", "c")) == in_one_order(journal("b", "a", "c"))
    assert in_one_order(journal("a", "b", "c")) != in_one_order(journal("a", "c", "b"))
    assert in_one_order(journal("a", "b", "c")) != in_one_order(journal("a", "b", "d"))
    assert [one["seq"] for one in in_one_order(journal("b", "a", "c"))] == [1, 2, 3, 4, 5]


@tool(effect="at_most_once")
def transfer() -> str:
    """Transfer money."""
    return "transferred"


@flow_skill(id="transfers")
class Transfers:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        await ctx.approve("pay", "Pay?", policy=GatePolicy(reminder_s=None))
        return ctx.complete(await ctx.tool(transfer))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("run", [1, 2], ids=["undisturbed", "after a kill"])
async def test_a_task_that_only_an_operator_can_continue_ends_the_run(run: int, told: list[str]) -> None:
    """
    At once: the error names the point and the command, and why nobody knows whether it has had its effect.
    """

    async def approve(engine: Engine, view: TaskView) -> None:
        await engine.decide(view.task_id, approved=True, approver="ada")

    def lost(command: CallTool) -> Any:
        return unknown("the tool has no probe") if len(told) >= run else "transferred"

    with pytest.raises(AssertionError, match="only an operator") as failed:
        await sweep(FakeEngine([Transfers], answers={"transfer": lost}), told).run(
            "transfers",
            Content.from_text("go"),
            script=approve,
            points=lambda points: [one for one in points if one.kind is Kind.PERFORMED],
        )

    assert isinstance(failed.value, SweepFailed) is (run == 2)
    assert ("killed at performed 2.1" if run == 2 else "undisturbed") in str(failed.value)
    assert "tool transfer" in str(failed.value)
    assert "the tool has no probe" in str(failed.value)
