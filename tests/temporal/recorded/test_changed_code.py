"""What was recorded stays recorded, whatever code comes: on a real server, by restarting the worker with other code."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs
from temporalio.api.enums.v1 import EventType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from refold import Content, InputRejected, Status
from refold.digests import digest_after
from refold.divergence import DIFFERS
from refold.engine import CodeChanged, ForkView, NoWorker
from refold.export import read_export, written
from refold.temporal import TemporalEngine
from refold.temporal.client.connection import Connection
from refold.temporal.client.journal import JournalReader
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.data.wire import TRY_ANEW
from refold.temporal.dev import DevServer
from refold.temporal.encryption import Encryption
from refold.temporal.upgrade.sealing import seal
from tests.temporal.client.between import Call, between
from tests.temporal.recorded import purchase, wordless
from tests.temporal.recorded.deploying import Site, changed
from tests.temporal.replay.changed import each
from tests.temporal.test_task import collected
from tests.waiting import a_moment


@pytest.fixture
def site(client: Client, values: Folder) -> Site:
    """A queue of this test's own."""
    return Site(client, values)


@pytest.fixture
def hasty_site(hasty_client: Client, values: Folder) -> Site:
    """The same, for tasks whose workflow tasks fail: the server answers no question before the next one is over."""
    return Site(hasty_client, values)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where changed code goes."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


CHANGES = {
    "message": (2, "messages[0].parts[0].text", {"Here is what": "There is what"}),
    "question": (2, "messages[1].parts[0].text", {"Pay 5 cents to the shop?": "Pay 500 cents to a stranger?"}),
    "shown data": (2, "commands.pay.show.cents", {'"cents": 5}': '"cents": 500}'}),
    "approvers": (2, "commands.pay.policy.approvers[1]", {'("ada",)': '("ada", "eve")'}),
    "artifact": (2, "artifacts[0].parts[0].text", {'"5 cents to the shop, ': '"500 cents to the shop, '}),
    "progress": (2, "progress", {'"drafted"': '"written"'}),
    "a model's prompt": (1, "commands.draft.prompt", {"Describe the order.": "Praise the order."}),
    "a tool's arguments": (4, "commands.paid.args.cents", {"cents=5)": "cents=500)"}),
}
WAITS = ["a gate is open", "a gate was passed", "an effect was performed"]


async def test_what_was_recorded_stays(site: Site, code: Path) -> None:
    """
    Whatever text one deploy after the other changes, and wherever the task waits: people see what was recorded, with
    the change as a note; the task takes nothing; with its own code back, it goes on and performs each effect once.
    """
    async with site.deployed(purchase):
        tasks = [await site.bought(answers) for answers in range(len(WAITS))]
        before = {id: await site.seen(id) for id in tasks}

    for entry, field, edit in CHANGES.values():
        async with site.deployed(changed(code, edit)):
            for id in tasks:
                view = await site.engine.look(id)
                if view.seq < entry:
                    assert view.note == ""
                    continue
                assert await site.seen(id) == before[id]
                assert f"entry {entry}: {field} was recorded by build" in view.note
                assert (await site.engine.record(id)).differs == view.note
                assert view.note.startswith(f"{DIFFERS} of task {id!r}: {view.differs}. Nothing is lost")
                assert (await site.engine.at(id, entry)).state is None
                with pytest.raises(NoWorker, match=re.escape(f"entry {entry}: {field}")):
                    await site.answer(id)

    async with site.deployed(purchase):
        for number, id in enumerate(tasks):
            assert await site.seen(id) == before[id]
            view = await site.go_on(id, 3 - number)
            assert view.status is Status.COMPLETED
            assert view.messages[:3] == before[id][0].messages[:3]
            assert purchase.PAID.count((id, 5)) == 1
            assert (id, 500) not in purchase.PAID


async def test_a_decision_reaches_the_fitting_one_of_two_workers(
    server: DevServer, site: Site, values: Folder, code: Path
) -> None:
    """
    The server gives the task to the worker that has just taken it, although that refuses it; others are asked, too.
    """
    own = await Client.connect(server.address, namespace=server.namespace, data_converter=data_converter(values))
    async with site.deployed(purchase, build_id="old"):
        id = await site.bought(0)
    async with site.deployed(changed(code, CHANGES["shown data"][2]), client=own, build_id="new"):
        with pytest.raises(NoWorker, match=DIFFERS):
            await site.answer(id)  # it has the task in its cache from now on
        async with site.deployed(purchase, build_id="old"):
            await site.answer(id)

            assert [one.slot for one in (await site.engine.look(id)).waiting_for] == ["when"]


@pytest.mark.sweep
async def test_with_encryption_nothing_recorded_is_in_clear(
    hasty_server: DevServer, hasty_client: Client, values: Folder, code: Path
) -> None:
    """
    With a codec, marks and words are encrypted; they are compared and shown just so, and so is the difference. Who has
    no key finds the task among the others, with a note.
    """
    keyless = TemporalEngine(hasty_client, "tests")
    converter = data_converter(values, Encryption({"test": os.urandom(32)}))
    client = await Client.connect(hasty_server.address, namespace=hasty_server.namespace, data_converter=converter)
    site = Site(client, values)
    async with site.deployed(purchase):
        id = await site.bought(1)
        before = await site.seen(id)

    async with site.deployed(changed(code, CHANGES["question"][2])):
        assert await site.seen(id) == before
        await client.get_workflow_handle(id).signal("message", "now")
        assert "Pay 500 cents" in await noted(site, id)
        assert await site.seen(id) == before

        # No more than this one: each that is listed is looked at, and the tasks of other tests have no worker by now.
        while (listed := [view async for view in keyless.list(skill="recorded_purchase", limit=1)])[0].task_id != id:
            pass  # the index lags behind
        assert "this process cannot read it: a value is encrypted by the key 'test'" in listed[0].note

    history = await client.get_workflow_handle(id).fetch_history()
    written = b"".join(event.SerializeToString() for event in history.events)
    assert b"cents" not in written


async def noted(site: Site, id: str) -> str:
    """The note on a task whose workflow task has failed."""
    await happened(site, id, EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
    # A worker that is about to try again may never answer: the failure is asked for after half the patience.
    return (await TemporalEngine(site.engine.client, site.engine.task_queue).look(id)).note


async def happened(site: Site, id: str, kind: EventType.ValueType, times: int = 1) -> None:
    """Wait until a task's history holds an event of this kind so often."""
    async for event in site.engine.client.get_workflow_handle(id).fetch_history_events(wait_new_event=True):
        times -= event.event_type == kind
        if not times:
            return


async def test_what_came_meanwhile_is_taken_once_the_code_is_back(hasty_site: Site, code: Path) -> None:
    """
    A signal that the other code met stops the task, which still shows what was recorded, though the server asks no
    worker any more, and can be exported and forked. With the code put back, the signal is taken, and each effect is
    performed once.
    """
    async with hasty_site.deployed(purchase):
        id = await hasty_site.bought(1)
        before = await hasty_site.seen(id)

    async with hasty_site.deployed(changed(code, CHANGES["question"][2])):
        await hasty_site.engine.client.get_workflow_handle(id).signal("message", "now")
        assert "entry 2: messages[1].parts[0].text" in await noted(hasty_site, id)
        assert await hasty_site.seen(id) == before
        with pytest.raises(CodeChanged, match="differs from what was recorded"):
            await hasty_site.engine.send(id, Content.from_text("now"))
        [exported] = read_export([line async for line in written(hasty_site.engine, id)])
        assert exported.entries == before[2]
        assert (await hasty_site.engine.fork(id, at=1)).forked_from == ForkView(task_id=id, seq=1, live=False)

    history = await hasty_site.engine.client.get_workflow_handle(id).fetch_history()
    with capture_logs() as logs:
        [replayed] = await each([history], purchase, values=hasty_site.values.path)
    assert replayed.same
    assert logs == [], "what the replayed code makes of the signal has not happened"

    async with hasty_site.deployed(purchase):
        await happened(hasty_site, id, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, times=2)
        view = await hasty_site.go_on(id, 1)
        assert view.status is Status.COMPLETED
        assert purchase.PAID.count((id, 5)) == 1


async def test_a_cancel_waits_for_the_code(hasty_site: Site, code: Path) -> None:
    """
    A task that takes nothing is not canceled, and whoever cancels it is told so; with the code back, it is.
    """
    hasty = TemporalEngine(hasty_site.engine.client, hasty_site.engine.task_queue, patience=timedelta(seconds=1))
    async with hasty_site.deployed(purchase):
        id = await hasty_site.bought(1)

    async with hasty_site.deployed(changed(code, CHANGES["question"][2])):
        with pytest.raises(CodeChanged, match=r"is not canceled yet.*entry 2: messages\[1\].parts\[0\].text"):
            await hasty.cancel(id)

    async with hasty_site.deployed(purchase):
        await collected(hasty_site.engine.watch(id, follow=True))
        assert (await hasty_site.engine.look(id)).status is Status.CANCELED


@pytest.mark.sweep
async def test_a_worker_that_is_lost_does_not_hide_what_differs(hasty_site: Site, code: Path) -> None:
    """
    The server keeps the failure of a first attempt alone. Where that was lost with the old code's worker, whoever looks
    makes it keep the next one's. The task takes nothing of that; with the code back, it goes on.
    """
    client, queue = hasty_site.engine.client, hasty_site.engine.connection.task_queue
    async with hasty_site.deployed(purchase):
        id = await hasty_site.bought(1)
        before = await hasty_site.seen(id)
    task = client.get_workflow_handle(id)
    await task.signal("message", "now")
    taken = await client.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue))
    )
    assert taken.workflow_execution.workflow_id == id

    async with hasty_site.deployed(changed(code, CHANGES["question"][2])):
        await happened(hasty_site, id, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
        while "entry 2: messages[1].parts[0].text" not in (await hasty_site.engine.look(id)).note:
            await a_moment()
        assert await hasty_site.seen(id) == before
    sent = [event.workflow_execution_signaled_event_attributes async for event in task.fetch_history_events()]
    assert [one.signal_name for one in sent if one.signal_name] == ["message", TRY_ANEW]

    async with hasty_site.deployed(purchase):
        await happened(hasty_site, id, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, times=2)
        view = await hasty_site.go_on(id, 1)
    assert (view.status, view.refused) == (Status.COMPLETED, 0)


async def test_a_retry_waits_for_the_code(hasty_site: Site, code: Path) -> None:
    """
    An effect that is being retried is not tried with the arguments of other code: its retry waits for its own.
    """
    async with hasty_site.deployed(purchase):
        id = await hasty_site.bought(1)
        purchase.BUSY.add(id)
        await hasty_site.answer(id)
        await happened(hasty_site, id, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED)

    async with hasty_site.deployed(changed(code, CHANGES["a tool's arguments"][2])):
        purchase.BUSY.remove(id)
        assert "entry 4: commands.paid.args.cents" in await noted(hasty_site, id)
        assert [one.command for one in (await hasty_site.engine.look(id)).pending] == ["tool pay"]

    async with hasty_site.deployed(purchase):
        await happened(hasty_site, id, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, times=2)
        assert (await hasty_site.go_on(id, 1)).status is Status.COMPLETED
    assert [paid for paid in purchase.PAID if paid[0] == id] == [(id, 5)]


async def test_other_commands_stop_a_task_in_the_same_words(site: Site, code: Path) -> None:
    """
    Code that sends other commands than history holds cannot be replayed: a question is answered with what differs. A
    branch needs the code that recorded the task, as the answer says.
    """
    async with site.deployed(purchase):
        id = await site.bought(1)

    edit = {'await ctx.llm("draft", "Describe the order.", content)': "await ctx.sleep(3600)"}
    async with site.deployed(changed(code, edit)):
        note = (await site.engine.look(id)).note
        with pytest.raises(NoWorker, match="the fork needs that code, too"):
            await site.engine.fork(id, at=1)
    async with site.deployed(purchase):
        assert (await site.engine.fork(id, at=1)).forked_from == ForkView(task_id=id, seq=1, live=False)

    assert "entry 1: commands.draft was recorded by build" in note
    assert "ctx.patched" in note


async def test_a_recovered_task_says_what_differs(site: Site, code: Path) -> None:
    """
    Its code folds the journal of the task before once more; where that is refused now, the task has begun all the same:
    what differs is said as for any task, and with the code back it goes on.
    """
    async with site.deployed(purchase):
        id = await site.bought(1)
        await site.engine.cancel(id)
        await collected(site.engine.watch(id, follow=True))
        recovered = (await site.engine.recover(id)).task_id
        begun = (await site.engine.look(recovered)).recovered_from

    edit = {'await ctx.llm("draft", "Describe the order.", content)': "await ctx.sleep(3600)"}
    async with site.deployed(changed(code, edit)):
        note = (await site.engine.look(recovered)).note

    async with site.deployed(purchase):
        assert (await site.go_on(recovered, 2)).status is Status.COMPLETED
    assert begun == id
    assert note.startswith(f"{DIFFERS} of task {recovered!r}: after entry ")
    assert "the code would not recover the task before: " in note


@pytest.mark.sweep
async def test_the_newest_run_answers_for_no_earlier_one(hasty_site: Site, code: Path) -> None:
    """
    The newest run stands still, and its failure answers; whoever asks for the entries of the first run, whose worker
    does not answer, is told so instead of being given those of the newest.
    """
    connection = hasty_site.engine.connection
    async with hasty_site.deployed(purchase):
        id = await hasty_site.bought(1)
        first = (await connection.describe(id)).run_id
        await seal(connection, id)
        while (await connection.describe(id)).run_id == first:
            await a_moment()
        await hasty_site.go_on(id, 1)

    async def on(rpc: str, call: Call) -> Any:
        if rpc == "query_workflow":
            raise RPCError("late", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        return await call()

    async with hasty_site.deployed(changed(code, {"How was it?": "And now?"})):
        await connection.client.get_workflow_handle(id).signal("message", "well")
        assert DIFFERS in await noted(hasty_site, id)
        reader = JournalReader(Connection(between(connection.client, on), connection.task_queue), id)
        assert (await reader.page(None, 0)).base > 0
        with pytest.raises(NoWorker):
            await reader.page(first, 0)


async def planned(site: Site) -> str:
    """A task that has written its plan, in its second entry, and sleeps."""
    id = f"plan-{uuid4().hex[:8]}"
    await site.engine.start("recorded_contract", Content.from_text("go"), task_id=id)
    await site.engine.send(id, Content.from_text("on"))
    return id


async def test_what_history_has_no_words_for_is_left_out(site: Site, code: Path) -> None:
    """
    What a step wrote to the state is in no history: where code differs there, the digests are named, and from that
    entry on neither the state nor the audit that today's code makes is shown. Entries before are shown whole.
    """
    async with site.deployed(wordless):
        id = await planned(site)
        before, entries = await site.engine.at(id, 1), await collected(site.engine.journal(id))
        assert (await site.engine.explain(id, "plan")).value == "a plan"

    async with site.deployed(changed(code, {"a plan": "no plan"}, wordless)):
        view = await site.engine.look(id)
        assert view.differs.startswith("entry 2 is another than was recorded by build ")
        assert f"the digest up to entry 2 was {digest_after(entries).hex()}, and is" in view.differs
        assert "History has no words for what differs" in view.note
        assert await site.engine.at(id, 1) == before
        assert (await site.engine.at(id, 2)).state is None
        assert await collected(site.engine.journal(id)) == [entries[0], entries[1].changed({"audit": ()})]
        with pytest.raises(InputRejected, match=f"only the code that recorded task {id!r} can say: entry 2 is"):
            await site.engine.explain(id, "plan")
        assert "no plan" not in f"{view} {await site.engine.record(id)} {await site.engine.at(id, 2)}"


async def test_a_sleep_ends_when_it_was_recorded_to(site: Site, code: Path) -> None:
    """
    A task that sleeps shows the recorded end of its sleep, whatever today's code says.
    """
    async with site.deployed(wordless):
        id = await planned(site)
        [before] = (await site.engine.look(id)).pending

    async with site.deployed(changed(code, {"86_400": "7"}, wordless)):
        view = await site.engine.look(id)
        assert view.pending == (before,)
        assert "commands.sleep.seconds was recorded by build" in view.differs
        assert view.differs.endswith(" as 86400.0, and the code says 7.0 now")
        [pending] = (await site.engine.at(id, 2)).pending.values()
        assert pending.due_at == before.due_at


class Refusing:
    """A client's service that answers questions for histories with an error, as often as told to."""

    def __init__(self, client: Client, status: RPCStatusCode, times: int) -> None:
        self.asked = 0
        ask = client.workflow_service.get_workflow_execution_history

        async def history(request: Any, **options: Any) -> Any:
            if request.maximum_page_size or request.wait_new_event:
                return await ask(request, **options)  # a reader's, not the worker's
            self.asked += 1
            if self.asked <= times:
                raise RPCError("not for you", status, b"")
            return await ask(request, **options)

        client.workflow_service.get_workflow_execution_history = history  # type: ignore[assignment, method-assign]


async def own_client(server: DevServer, values: Folder) -> Client:
    """A client that a test may spoil."""
    return await Client.connect(server.address, namespace=server.namespace, data_converter=data_converter(values))


@pytest.mark.parametrize("status", [RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED])
async def test_a_worker_that_may_not_read_histories_goes_on(
    server: DevServer, site: Site, values: Folder, code: Path, status: RPCStatusCode
) -> None:
    """
    Where the server, or a proxy before it, refuses the history, tasks go on unverified, as they did before there were
    marks; a log line says so once.
    """
    async with site.deployed(purchase):
        tasks = [await site.bought(1) for _ in range(2)]

    client = await own_client(server, values)
    Refusing(client, status, times=100)
    with capture_logs() as logs:
        async with site.deployed(changed(code, CHANGES["message"][2]), client=client):
            views = [await site.go_on(id, 2) for id in tasks]

    assert {view.status for view in views} == {Status.COMPLETED}
    assert [line["reason"] for line in logs if line["event"] == "tasks_unverified"] == ["not for you"]


async def test_no_task_acts_before_it_was_compared(server: DevServer, site: Site, values: Folder, code: Path) -> None:
    """
    A server that hiccups lets no unverified task act: it is asked again until the history is there.
    """
    async with site.deployed(purchase):
        id = await site.bought(1)
        before = await site.seen(id)

    client = await own_client(server, values)
    refusing = Refusing(client, RPCStatusCode.RESOURCE_EXHAUSTED, times=6)  # for longer than one activation waits
    async with site.deployed(changed(code, CHANGES["message"][2]), client=client):
        with pytest.raises(NoWorker, match="differs from what was recorded"):
            await site.answer(id)
        assert await site.seen(id) == before
    assert refusing.asked > 6
    assert (id, 5) not in purchase.PAID
