"""Listing on the real server: every status, and owners of any name."""

from __future__ import annotations

import asyncio

from a2a.types import ListTasksRequest

from refold import Content
from refold.a2a.tasks.listing import Listing
from refold.engine import TaskFilter
from refold.temporal import TemporalEngine
from tests.waiting import a_moment

ODD = ["x' OR RefoldOwner != 'zz", 'a"b\\', "grâce 🙂", "o" * 4096, "ada", "ada "]


async def test_every_status_has_its_filter(a2a_engine: TemporalEngine) -> None:
    """
    Open tasks by what they show, ended ones by how they ended; each is found by one filter alone.
    """
    owner = "x' OR RefoldOwner != 'zz"
    said = {
        "COMPLETED": ("picky", "please"),
        "REJECTED": ("picky", "rude"),
        "FAILED": ("picky", "fail"),
        "INPUT_REQUIRED": ("ask", "hi"),
        "CANCELED": ("ask", "hi"),
        "WORKING": ("wait", "never"),
    }
    tasks = {
        status: await a2a_engine.start(skill, Content.from_text(text), owner=owner, context="statuses")
        for status, (skill, text) in said.items()
    }
    await a2a_engine.cancel(tasks["CANCELED"].task_id)
    listing = Listing(a2a_engine)

    for status, view in tasks.items():
        found: list[str] = []
        request = ListTasksRequest(status=f"TASK_STATE_{status}", context_id="statuses")
        while not found:  # visibility lags a little
            found = [task.id for task in (await listing.page(request, owner)).tasks]
        assert found == [view.task_id]
    everything = await listing.page(ListTasksRequest(), owner)
    assert sorted(task.id for task in everything.tasks) == sorted(view.task_id for view in tasks.values())
    times = [task.status.timestamp.ToMicroseconds() for task in everything.tasks]
    assert times == sorted(times, reverse=True)
    await a2a_engine.cancel(tasks["WORKING"].task_id)


async def test_owners_and_conversations_see_only_themselves(a2a_engine: TemporalEngine) -> None:
    """
    What a name holds never becomes a part of the server's filter; a name is equal to itself alone.
    """
    views = await asyncio.gather(
        *(a2a_engine.start("ask", Content.from_text("hi"), owner=name, context=name) for name in ODD)
    )
    listing = Listing(a2a_engine)

    for name, view in zip(ODD, views, strict=True):
        own = TaskFilter(owner=name, context=name)
        while await a2a_engine.count(own) == 0:  # visibility lags a little
            await a_moment()
        assert [one.task_id for one in await a2a_engine.find(own)] == [view.task_id]
        for other in ODD:
            page = await listing.page(ListTasksRequest(context_id=other), name)
            assert [task.id for task in page.tasks] == ([view.task_id] if other == name else [])
