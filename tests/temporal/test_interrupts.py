"""A message that interrupts a task at work, on a real server; what ended here is replayed when the session ends."""

from __future__ import annotations

from refold import Content, Status, TaskState
from refold.core.events import ToolResult
from refold.temporal import TemporalEngine
from tests.temporal.test_task import collected, settled


async def test_a_message_ends_a_rest(engine: TemporalEngine) -> None:
    """
    The timer is canceled, the tool was called once, and its result is there for the step that meets the message.
    """
    view = await engine.start("interrupted", Content.from_text("go"))
    async for _ in engine.watch(view.task_id, follow=True):
        if [one.command for one in (await engine.look(view.task_id)).pending] == ["sleep rest"]:
            break

    await engine.send(view.task_id, Content.from_text("enough"), early="interrupt", delivery_id="once")
    done = await settled(engine, view.task_id)
    journal = await collected(engine.journal(view.task_id))

    assert (done.status, done.lifecycle) == (Status.COMPLETED, TaskState.DONE)
    assert done.messages[-1].text == "enough, 3"
    assert [type(entry.event) for entry in journal].count(ToolResult) == 1
    assert journal[-1].note.startswith("a message interrupts the task; step 'begin' is left")
