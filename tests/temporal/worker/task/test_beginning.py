"""What a run begins with: what earlier releases made of the same start, a replay makes of it again."""

from __future__ import annotations

import json

from pydantic import JsonValue

from refold import Callback, Ctx, Transition, flow_skill, step
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK
from refold.temporal import workflow_for
from refold.temporal.data.wire import Segment, TaskStart
from tests.core.byhand import ByHand, at, message
from tests.temporal.worker.activated import Activated, updated


@flow_skill(id="call_meets_bug")
class CallMeetsBug:
    """Has a bug where it continues with the call, until the address expires."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        address: Callback = await ctx.callback("address", expires_s=1)
        said = await ctx.ask("paid", "?", callback=address)
        if ctx.now < address.until:
            raise KeyError("bug")
        return ctx.complete(said.text)


CallMeetsBugWorkflow = workflow_for(CallMeetsBug)


def recovers() -> JsonValue:
    """The start of a task that recovers one whose call came in time and met the bug; the address has expired by now."""
    failed, called = ByHand(CallMeetsBug), f"{CALLBACK}T"
    failed.feed(message(), second=0)
    address = Callback(digest=text_hash(called), until=at(1)).model_dump(mode="json")
    failed.give("address", address, second=0)
    failed.feed(message("paid", slot=called), second=0.5)
    assert failed.reason.startswith("bug: KeyError")
    journal = Segment(base=failed.base, entries=tuple(failed.journal))
    return TaskStart(recover=journal, in_turn=True).model_dump(mode="json")


async def test_a_call_that_came_in_time_is_taken_once_its_address_has_expired() -> None:
    """
    History says so with a marker.
    """
    task = Activated(CallMeetsBugWorkflow, "T2")

    assert task.begin(recovers()) == ["set_patch_marker", "complete_workflow_execution"]


async def test_a_recorded_run_whose_call_was_late_is_replayed_as_it_was() -> None:
    """
    In a task that an earlier release recovered, the question times out: it has no marker.
    """
    task = Activated(CallMeetsBugWorkflow, "T2")

    begun = task.activated(3, task.initialized(recovers()), replaying=True)

    sent = [command.WhichOneof("variant") for command in begun.successful.commands]
    assert sent == ["upsert_workflow_search_attributes", "start_timer"]


@flow_skill(id="asks_when_changed")
class AsksWhenChanged:
    """Had a bug where it now asks; a later change fails the tasks that begin with it."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        if BROKEN:
            raise KeyError("bug")
        if ctx.patched("limit"):
            return ctx.fail("too much")
        await ctx.ask("ok", "Fine?")
        return ctx.complete()


AsksWhenChangedWorkflow = workflow_for(AsksWhenChanged)
BROKEN: list[str] = []


def recovers_changed() -> JsonValue:
    """The start of a task that recovers one which met the bug."""
    failed = ByHand(AsksWhenChanged)
    BROKEN.append("yes")
    failed.feed(message(), second=0)
    BROKEN.clear()
    journal = Segment(base=failed.base, entries=tuple(failed.journal))
    return TaskStart(recover=journal, in_turn=True).model_dump(mode="json")


async def test_a_recovered_task_from_before_a_change_is_loaded_on_its_old_path() -> None:
    """
    Its history has no marker of the change: it waits for its answer, though it would fail at once on the new path. A
    task that is recovered after the change is refused.
    """
    old, new = Activated(AsksWhenChangedWorkflow, "T2"), Activated(AsksWhenChangedWorkflow, "T2")

    begun = old.activated(3, old.initialized(recovers_changed()), replaying=True)

    sent = [command.WhichOneof("variant") for command in begun.successful.commands]
    assert sent == ["upsert_workflow_search_attributes"]
    assert "fail_workflow_execution" in new.begin(recovers_changed())


async def test_a_new_run_asks_refolds_patches_itself() -> None:
    """
    It begins with the answers of the skill's patches alone, whichever release recorded the run before.
    """
    task = ByHand(AsksWhenChanged, patched=lambda _: False)
    task.feed(message(), second=0)
    before = task.task.changed({"patches": {**task.task.patches, "refold.one": True, "refold.two": False}})
    run = Activated(AsksWhenChangedWorkflow, "T")
    run.begin(TaskStart(snapshot=before).model_dump(mode="json"))

    sealed = run.activated(6, updated("seal", None))

    [begins] = [
        next_one.continue_as_new_workflow_execution.arguments[0].data
        for next_one in sealed.successful.commands
        if next_one.HasField("continue_as_new_workflow_execution")
    ]
    assert json.loads(begins)["snapshot"]["patches"] == {"limit": False}
