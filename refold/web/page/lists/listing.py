"""All tasks: filters in the address, and counts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from refold.core.lifecycle import TaskState
from refold.engine import Listed, Place, TaskFilter
from refold.web.page.frame import Call, Refused, check_accept
from refold.web.page.lists.saved import FILTERS, views_of

PAGE = 50
"""How many tasks one page shows."""

SCANNED = 2_000
"""How many tasks are searched for a text in their ids, for one page."""

FIRST_YEAR, LAST_YEAR = 1970, 9998
"""Between which years a place in the list can be; near the ends of the calendar no time can be added."""

AGES = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}


async def tasks(call: Call) -> Response:
    """`GET /tasks?skill=&lifecycle=&owner=&age=&text=&after=`: the tasks, the latest change first."""
    check_accept(call.request)
    wanted = wanted_of(call)
    (found, following), counts = await asyncio.gather(
        page_of(call, wanted, place_in(call.asked("after"))), _counts(call, wanted)
    )
    given = {name: call.asked(name) for name in FILTERS}
    skills = sorted({*call.site.skills, *filter(None, [wanted.skill])})
    return call.page(
        "tasks.html",
        tasks=found,
        counts=counts,
        given=given,
        skills=skills,
        states=list(TaskState),
        ages=list(AGES),
        following=following,
        first=not call.asked("after"),
        views=views_of(call),
    )


def wanted_of(call: Call) -> TaskFilter:
    """The filters of the address.

    Raises:
        Refused: A word is none of those that there are.
    """
    lifecycle, age = call.asked("lifecycle"), call.asked("age")
    if lifecycle and lifecycle not in list(TaskState):
        raise Refused(404, f"no lifecycle state {lifecycle!r}; there are {', '.join(TaskState)}")
    if age and age not in AGES:
        raise Refused(404, f"no age {age!r}; there are {', '.join(AGES)}")
    owner = call.asked("owner") or None
    return TaskFilter(
        skill=call.asked("skill") or None,
        lifecycle=TaskState(lifecycle) if lifecycle else None,
        owner=owner if call.person.sees_all else call.person.name,
        since=datetime.now(UTC) - AGES[age] if age else None,
    )


async def page_of(call: Call, wanted: TaskFilter, place: Place | None) -> tuple[list[Listed], str]:
    """A page of tasks after a place, and where the next begins; empty if this is the last."""
    text = call.asked("text").strip().lower()
    found: list[Listed] = []
    size = PAGE if not text else 500
    for _ in range(SCANNED // size if text else 1):
        some = await call.engine.find(wanted, after=place, limit=size)
        for one in some:
            if text in one.task_id.lower():
                found.append(one)
            place = one.place
            if len(found) == PAGE:
                return found, written(place)
        if len(some) < size:
            return found, ""
    return found, "" if place is None else written(place)


def written(place: Place) -> str:
    """A place in the order of tasks, for an address."""
    return f"{place.at.isoformat()} {place.task_id}"


def place_in(given: str) -> Place | None:
    """The place that an address names; None for what is none, so that the list begins anew."""
    at, _, task_id = given.partition(" ")
    with suppress(ValueError):
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is not None and task_id and FIRST_YEAR <= moment.year <= LAST_YEAR:
            return Place(at=moment, task_id=task_id)
    return None


async def _counts(call: Call, wanted: TaskFilter) -> dict[TaskState, int]:
    """How many tasks there are in each state, with the other filters."""
    each = [wanted.model_copy(update={"lifecycle": state}) for state in TaskState]
    return dict(zip(TaskState, await asyncio.gather(*map(call.engine.count, each)), strict=True))
