"""Callers whose task's worker or server is away: they wait for it, and are told what they may do."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import pytest

from refold.a2a import Settings, a2a_app
from refold.engine import EngineError, News, NotConnected, NoWorker
from refold.record import TaskRecord
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import BASE, VERSION, calling, said

SENT = {"message": said("x"), "metadata": {"skill": "wait"}}


class Away(FakeEngine):
    """An engine that cannot be reached while somebody waits for a task to settle; the task goes on all the same."""

    def __init__(self, *faults: EngineError) -> None:
        super().__init__(skills.ALL)
        self.faults = list(faults)

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        """See `Engine.watch`."""
        if self.faults:
            raise self.faults.pop(0)
        await self.reply(task_id, "held", "done")
        async with contextlib.aclosing(super().watch(task_id, after=after, follow=follow)) as items:
            async for item in items:
                yield item


@pytest.mark.parametrize("fault", [NoWorker("no worker answers"), NotConnected("no server answers")], ids=repr)
async def test_a_call_waits_for_its_task(fault: EngineError, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its message is taken already, and an error would be a reason to send it again.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.AGAIN_S", 0.01)
    async with calling(a2a_app(Away(fault, fault), skills.ALL, Settings(url=BASE))) as calls:
        result = await calls.result("SendMessage", SENT)

    assert result["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


class AwayAtOnce(Away):
    """An engine whose server is away as soon as it has taken a message."""

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        if self.faults:
            raise self.faults.pop(0)
        return await super().record(task_id)


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.parametrize("kind", [Away, AwayAtOnce])
async def test_a_call_is_told_that_its_message_was_taken(
    kind: type[Away], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    By which task, once the server has been away for too long: the task goes on, and a second message would be a
    second task.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.OUTAGE_S", -1)
    engine = kind(NotConnected("no server answers"))
    async with calling(a2a_app(engine, skills.ALL, Settings(url=BASE))) as calls:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": SENT}
        answer = await calls.http.post(f"{BASE}/", json=body, headers=VERSION)
        [task] = [view.task_id async for view in engine.list()]

    assert f"Task '{task}' has taken the message" in answer.text
    assert "try again" not in answer.text
