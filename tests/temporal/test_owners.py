"""What one owner's task did is no use to another owner's, whatever both call it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from refold import Content, TaskState
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


async def test_a_workers_cache_is_the_owners_own(engine: TemporalEngine) -> None:
    """
    A cache that all tasks of a worker share has nothing of another owner's.
    """
    item = f"price-{uuid4().hex[:6]}"

    look = f'Look it up.\n-> look_up(item="{item}")\n-> {{look_up}}'

    said = [await say(engine, owner, "cached", look) for owner in ("ada", "ada", "bob", None)]

    assert said[0] == said[1]
    assert len(set(said)) == len(keys_of(item)) == 3
