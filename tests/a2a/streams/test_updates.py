"""What a journal entry is in A2A's words; pure."""

from __future__ import annotations

import pytest
from a2a.types import TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict

from refold import Artifact, Content, Ctx, Transition, flow_skill, step
from refold.a2a.convert import task_of
from refold.a2a.streams.updates import EventId, Update, partly_told, transient_of, updates_of
from refold.engine import Tokens
from refold.record import TaskRecord, record_of, with_entry
from refold.testing import FakeEngine
from tests.a2a import skills


@flow_skill(id="asker", description="Asks.")
class Asker:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.ask("account", "Which account?"))


@flow_skill(id="busy", description="Talks, and hands things over, while a part of it asks.")
class Busy:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.parallel(self.ask(ctx), self.search(ctx))
        return ctx.complete("Done.")

    async def ask(self, ctx: Ctx) -> None:
        await ctx.skill("part", Asker, "x")

    async def search(self, ctx: Ctx) -> None:
        await ctx.sleep(1)
        ctx.say("Half of the search is done.")
        ctx.hand_over(Artifact.from_text("half", "found"))
        await ctx.sleep(1)
        ctx.hand_over(Artifact.from_text("whole", "found"))
        await ctx.sleep(1)


async def story(skill: str, said: str, *more: str) -> tuple[TaskRecord, list[tuple[TaskRecord, list[Update]]]]:
    """A task's entries, each as the task before it and its updates; and the task after them."""
    engine = FakeEngine([*skills.ALL, Asker, Busy], answers={"held": "done"})
    await engine.start(skill, Content.from_text(said), task_id="t")
    for answer in more:
        await engine.send("t", Content.from_text(answer))
    await engine.advance()
    record = record_of((await engine.at("t", 1)).model_copy(update={"seq": 0}))
    record = record.model_copy(update={"messages": (), "artifacts": (), "waits": (), "status": "submitted"})
    steps: list[tuple[TaskRecord, list[Update]]] = []
    async for entry in engine.journal("t"):
        steps.append((record, updates_of(record, entry)))
        record = with_entry(record, entry)
    assert record == await engine.record("t")
    return record, steps


async def test_content_comes_before_status() -> None:
    """
    What was handed over comes first, then the last words together with the last status; each once, numbered.
    """
    record, [(_, updates)] = await story("echo", "Hello")

    artifact, status = (MessageToDict(update) for update in updates)

    assert artifact["artifact"] == {"artifactId": "echo", "name": "echo", "parts": [{"text": "Hello"}]}
    assert status["status"]["state"] == "TASK_STATE_COMPLETED"
    assert status["status"]["message"]["messageId"] == MessageToDict(task_of(record))["history"][-1]["messageId"]
    assert [one["metadata"]["refold"] for one in (artifact, status)] == [
        {"id": "1.1", "event": "user_message"},
        {"id": "1.2", "event": "user_message"},
    ]


async def test_every_entry_is_told() -> None:
    """
    What a skill says on its way is an update of its own; an entry that says nothing still gives its status.
    """
    _, steps = await story("wait", "x")

    assert [len(updates) for _, updates in steps] == [2, 1]


@pytest.mark.parametrize("skill", ["ask", "busy", "echo", "report", "wait"])
async def test_the_last_status_that_is_told_of_an_entry_is_the_tasks(skill: str) -> None:
    """
    What a task says while it waits takes no place of its question, in a client that keeps the last status.
    """
    record, steps = await story(skill, "x")
    after = [*(before for before, _ in steps[1:]), record]
    told = [[update for update in updates if isinstance(update, TaskStatusUpdateEvent)] for _, updates in steps]

    for statuses, task in zip(told, after, strict=True):
        if statuses and (task.paused or task.ended):
            assert statuses[-1].status == task_of(task).status
    if skill == "busy":
        assert sum(task.paused for task in after) == 4
        assert [len(updates) for _, updates in steps[2:4]] == [3, 1]


@pytest.mark.parametrize("said", [("ask", "x", "Ada"), ("busy", "x")], ids=["asks again", "a part asks"])
async def test_every_status_that_asks_has_the_question(said: tuple[str, ...]) -> None:
    """
    A client that stops at the first one can answer.
    """
    _, steps = await story(*said)
    told = [update.status for _, updates in steps for update in updates if isinstance(update, TaskStatusUpdateEvent)]
    asking = [status for status in told if status.state == TaskState.TASK_STATE_INPUT_REQUIRED]

    assert len(asking) > 1
    assert all("waiting_for" in MessageToDict(status.message.metadata)["refold"] for status in asking)


async def test_chunks_add_up_to_the_artifact() -> None:
    """
    The first chunk begins it, the others are added, the last one says so; the task has all parts, in order.
    """
    record, steps = await story("report", "one two three")
    chunks = [update for _, updates in steps for update in updates if isinstance(update, TaskArtifactUpdateEvent)]
    whole = task_of(record).artifacts[0]
    told = task_of(steps[0][0])
    for before, updates in steps:
        told = partly_told(before, updates)

    assert [chunk.append for chunk in chunks] == [False, True, True]
    assert [chunk.last_chunk for chunk in chunks] == [False, False, True]
    assert [part.text for part in whole.parts] == ["one", "two", "three"]
    assert told.artifacts[0] == whole


async def test_a_task_that_was_told_in_parts_is_the_same_task() -> None:
    """
    All updates of an entry lead to the task after it; and a part of them to what was told so far.
    """
    record, [(before, updates)] = await story("echo", "Hello")

    whole = partly_told(before, updates)
    part = partly_told(before, updates[:1])

    assert whole.status == task_of(record).status
    assert list(whole.artifacts) == list(task_of(record).artifacts) == list(part.artifacts)
    assert part.status.state == TaskState.TASK_STATE_SUBMITTED
    assert isinstance(updates[0], TaskArtifactUpdateEvent)


@pytest.mark.parametrize("text", ["", "x", "1", "1.", ".1", "1.2.3", "-1.2", "1.2\nid: 9", "१.२", "9" * 20 + ".1"])
def test_only_our_own_ids_are_ids(text: str) -> None:
    """
    Anything else is none.
    """
    assert EventId.read(text) is None


def test_an_id_reads_as_it_is_written() -> None:
    """
    An entry's number, and the place in it.
    """
    assert EventId.read("12.3") == (12, 3)
    assert str(EventId(12)) == "12.0"


async def test_model_text_is_marked_and_has_no_number() -> None:
    """
    A client tells it from what is journaled, and does not resume from it.
    """
    record, _ = await story("wait", "x")
    update = MessageToDict(transient_of(record, Tokens(invocation_id="t/1.1", attempt=2, offset=5, text="Once")))

    said = {"transient": True, "call": "t/1.1", "attempt": 2, "offset": 5}
    assert update["metadata"] == update["status"]["message"]["metadata"] == {"refold": said}
    assert update["status"]["message"]["parts"] == [{"text": "Once"}]


async def test_arguments_of_a_tool_call_are_told_from_an_answer() -> None:
    """
    They name the tool, and which of the answer's calls it is.
    """
    record, _ = await story("wait", "x")
    tokens = Tokens(invocation_id="t/1.1", attempt=1, offset=0, text='{"city":', call=0, tool="weather")
    told = MessageToDict(transient_of(record, tokens))["metadata"]["refold"]

    assert (told["tool"], told["tool_call"]) == ("weather", 0)
