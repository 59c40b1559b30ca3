"""What one owner's task did is no use to another owner's, whatever both call it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from refold import Content, Status, TaskState
from refold.engine import TaskNotFound
from refold.temporal import TemporalEngine
from tests.temporal.owner_skills import BY_POLICY, PERFORMED
from tests.temporal.test_task import settled

RECEIPTED = ("at_most_once", "compensate")


async def say(engine: TemporalEngine, owner: str | None, skill: str = "keyed", said: str = "", **call: Any) -> str:
    """What a task of this owner answers."""
    view = await engine.start(skill, Content.from_text(said) if said else Content.from_data(call), owner=owner)
    view = await settled(engine, view.task_id)
    if view.lifecycle is TaskState.FAILED:
        return view.reason or ""
    return view.messages[-1].text


def keys_of(item: str) -> list[str]:
    """The keys that receivers saw for an item."""
    return [key for found, key in PERFORMED if found == item]


@pytest.mark.parametrize("policy", BY_POLICY)
async def test_a_business_key_is_its_owners(engine: TemporalEngine, policy: str) -> None:
    """
    Two owners give one key: two effects, each with a key of its own, and each reads its own result.
    """
    item = f"tea-{uuid4().hex[:6]}"
    call = {"policy": policy, "item": item, "key": f"order:{item}"}

    ada, bob, nobody = await asyncio.gather(*(say(engine, owner, **call) for owner in ("ada", "bob", None)))
    again = await say(engine, "ada", **call)

    assert len({ada, bob, nobody}) == 3
    assert len(set(keys_of(item))) == 3
    assert (again == ada, len(keys_of(item))) == ((True, 3) if policy in RECEIPTED else (False, 4))


@pytest.mark.parametrize("policy", RECEIPTED)
async def test_a_key_may_be_for_all(engine: TemporalEngine, policy: str) -> None:
    """
    Where the call says that its key is everybody's, it is one effect for all owners.
    """
    item = f"rice-{uuid4().hex[:6]}"
    call = {"policy": policy, "item": item, "key": f"order:{item}", "scope": "all"}

    said = {await say(engine, owner, **call) for owner in ("ada", "bob", None)}

    assert len(said) == len(keys_of(item)) == 1


async def test_what_is_compensated_is_the_owners_own(engine: TemporalEngine) -> None:
    """
    Ada's effect is undone and may be made again; bob's, with the same key, stands.
    """
    item = f"room-{uuid4().hex[:6]}"
    call = {"policy": "compensate", "item": item, "key": f"book:{item}"}

    bob = await say(engine, "bob", **call)
    await say(engine, "ada", **call, fails=True)
    assert len(keys_of(f"undo {item}")) == 1
    await say(engine, "ada", **call)

    assert await say(engine, "bob", **call) == bob
    assert len(keys_of(item)) == 3


async def asking(engine: TemporalEngine, **call: Any) -> str:
    """A task that has made the call, and then asks; answered, it fails."""
    view = await engine.start("keyed", Content.from_data({**call, "asks": True, "fails": True}), owner="ada")
    assert (await settled(engine, view.task_id)).status is Status.INPUT_REQUIRED
    return view.task_id


async def fail(engine: TemporalEngine, task_id: str) -> str:
    """Let a task fail that asks. Returns what its journal notes as it compensates."""
    await engine.send(task_id, Content.from_text("well"))
    assert (await settled(engine, task_id)).status is Status.FAILED
    return "; ".join([entry.note async for entry in engine.journal(task_id)])


def of_one_key(what: str) -> dict[str, Any]:
    item = f"{what}-{uuid4().hex[:6]}"
    return {"policy": "compensate", "item": item, "key": f"book:{item}"}


async def test_what_another_task_keeps_is_not_undone(engine: TemporalEngine) -> None:
    """
    A task that found the effect made by another one fails: the effect is the other task's, which has completed.
    """
    call = of_one_key("suite")
    first = await say(engine, "ada", **call)

    noted = await fail(engine, await asking(engine, **call))

    assert "NOT undone" in noted
    assert await say(engine, "ada", **call) == first
    assert (len(keys_of(call["item"])), keys_of(f"undo {call['item']}")) == (1, [])


async def delete(engine: TemporalEngine, task_id: str) -> None:
    """Delete a task, as the server does at the end of its namespace's retention."""
    request = DeleteWorkflowExecutionRequest(
        namespace=engine.client.namespace, workflow_execution=WorkflowExecution(workflow_id=task_id)
    )
    await engine.client.workflow_service.delete_workflow_execution(request)
    with suppress(TaskNotFound):
        while True:  # it is deleted some moments later
            await engine.look(task_id)


async def test_what_a_deleted_task_made_stays(engine: TemporalEngine) -> None:
    """
    The task may have completed, so it counts as if it had: a booking of last month is not undone by today's failure.
    """
    call = of_one_key("villa")
    maker = await engine.start("keyed", Content.from_data(call), owner="ada")
    assert (await settled(engine, maker.task_id)).status is Status.COMPLETED
    await delete(engine, maker.task_id)

    noted = await fail(engine, await asking(engine, **call))

    assert f"NOT undone: book: task {maker.task_id!r} has this effect, too" in noted
    assert (len(keys_of(call["item"])), keys_of(f"undo {call['item']}")) == (1, [])


async def test_what_goes_on_for_a_deleted_task_undoes_what_that_one_made(engine: TemporalEngine) -> None:
    """
    The effect has become its own.
    """
    call = of_one_key("stuck")
    maker = await asking(engine, **call, times=2)
    await engine.cancel(maker)
    assert (await settled(engine, maker)).status is Status.CANCELED
    goes_on = (await engine.recover(maker)).task_id
    assert (await settled(engine, goes_on)).status is Status.INPUT_REQUIRED
    undone = len(keys_of(f"undo {call['item']}"))
    await delete(engine, maker)

    noted = await fail(engine, goes_on)

    assert "has this effect, too" not in noted
    assert len(keys_of(f"undo {call['item']}")) > undone


@pytest.mark.parametrize("maker_first", [True, False])
async def test_an_effect_of_two_tasks_is_undone_once(engine: TemporalEngine, maker_first: bool) -> None:
    """
    Whichever of them fails first: the one that made it undoes it.
    """
    call = of_one_key("berth")
    tasks = [await asking(engine, **call) for _ in range(2)]

    for task in tasks if maker_first else reversed(tasks):
        await fail(engine, task)

    assert (len(keys_of(call["item"])), len(keys_of(f"undo {call['item']}"))) == (1, 1)


async def test_what_a_task_asked_for_twice_is_undone_once(engine: TemporalEngine) -> None:
    """
    Two calls with one key are one effect, and so is their compensation.
    """
    call = of_one_key("cabin")

    await say(engine, "ada", **call, times=2, fails=True)

    assert (len(keys_of(call["item"])), len(keys_of(f"undo {call['item']}"))) == (1, 1)


async def test_what_a_lost_task_made_is_undone_by_the_next(engine: TemporalEngine) -> None:
    """
    A task that was terminated compensates nothing; a task that goes on with its effect, and fails, does.
    """
    call = of_one_key("seat")
    lost = await asking(engine, **call)
    await engine.client.get_workflow_handle(lost).terminate()

    await say(engine, "ada", **call, fails=True)

    assert (len(keys_of(call["item"])), len(keys_of(f"undo {call['item']}"))) == (1, 1)


async def test_what_a_recovered_task_goes_on_with_is_not_undone(engine: TemporalEngine) -> None:
    """
    The task that made it was canceled and could not undo it; the one that goes on for it has it still.
    """
    call = of_one_key("stuck")
    maker = await asking(engine, **call)
    other = await asking(engine, **call)
    await engine.cancel(maker)
    goes_on = await engine.recover(maker)

    noted = await fail(engine, other)

    assert f"NOT undone: book: task {goes_on.task_id!r} has this effect, too" in noted
    assert (len(keys_of(call["item"])), len(keys_of(f"undo {call['item']}"))) == (1, 1)


async def test_a_task_that_is_only_named_so_keeps_nothing_for_another(engine: TemporalEngine) -> None:
    """
    The server takes any id for a new task, also that of a recovery.
    """
    call = of_one_key("stuck")
    maker = await asking(engine, **call)
    other = await asking(engine, **call)
    await engine.start("keyed", Content.from_data({**call, "key": None}), task_id=f"{maker}.r1", owner="ada")
    await settled(engine, f"{maker}.r1")
    await engine.cancel(maker)
    assert (await settled(engine, maker)).status is Status.CANCELED

    assert "has this effect, too" not in await fail(engine, other)


async def test_a_recovery_keeps_an_effect_though_an_earlier_one_was_deleted(engine: TemporalEngine) -> None:
    """
    The numbers of recoveries have gaps then.
    """
    call = of_one_key("stuck")
    maker = await asking(engine, **call)
    other = await asking(engine, **call)
    goes_on = maker
    for _ in range(2):
        await engine.cancel(goes_on)
        assert (await settled(engine, goes_on)).status is Status.CANCELED
        goes_on = (await engine.recover(maker)).task_id
        assert (await settled(engine, goes_on)).status is Status.INPUT_REQUIRED
    await delete(engine, f"{maker}.r1")
    while [one async for one in engine.client.list_workflows(f"WorkflowId = '{goes_on}'")] == []:
        pass  # the server's index lags behind

    assert goes_on == f"{maker}.r2"
    assert f"NOT undone: book: task {goes_on!r} has this effect, too" in await fail(engine, other)


async def test_a_workers_cache_is_the_owners_own(engine: TemporalEngine) -> None:
    """
    A cache that all tasks of a worker share has nothing of another owner's.
    """
    item = f"price-{uuid4().hex[:6]}"

    look = f'Look it up.\n-> look_up(item="{item}")\n-> {{look_up}}'

    said = [await say(engine, owner, "cached", look) for owner in ("ada", "ada", "bob", None)]

    assert said[0] == said[1]
    assert len(set(said)) == len(keys_of(item)) == 3
