"""Parts that an earlier run of a task started, as the next run holds them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from refold.temporal.worker.task import perform
from refold.temporal.worker.task.perform import LeftOpen


@pytest.mark.parametrize(
    ("at_once", "patched", "canceled"), [(True, True, True), (True, False, False), (False, False, True)]
)
async def test_a_part_is_canceled_however_soon(
    monkeypatch: pytest.MonkeyPatch, at_once: bool, patched: bool, canceled: bool
) -> None:
    """
    Also by the first event of a run, in the same step, unless an earlier release took that event; once, and the future
    ends when the server has the request.
    """
    asked, taken = list[str](), asyncio.Event()

    class Handle(SimpleNamespace):
        async def cancel(self, *, reason: str) -> None:
            asked.append(f"{self.id}: {reason}")
            await taken.wait()

    sdk = SimpleNamespace(
        info=lambda: SimpleNamespace(workflow_id="trip"),
        get_external_workflow_handle=lambda id: Handle(id=id),
        patched=lambda _: patched,
    )
    monkeypatch.setattr(perform, "workflow", sdk)
    part = LeftOpen("trip/1.1")
    if not at_once:
        await asyncio.sleep(0)

    assert (part.cancel(), part.cancel(), part.done()) == (True, False, False)
    taken.set()
    await asyncio.wait([part])

    assert part.cancelled()
    assert asked == ["trip/1.1: task 'trip' does not need it any more"] * canceled
