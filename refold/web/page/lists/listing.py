"""All tasks: filters in the address, and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic, time

from starlette.responses import Response

from refold.core.lifecycle import TaskState
from refold.engine import Listed, Place, TaskFilter
from refold.web.page.frame import Call, Refused, check_accept
from refold.web.page.lists.saved import FILTERS, views_of

PAGE = 50
"""How many tasks one page shows."""

SCANNED = 1_000
"""How many tasks one page looks through for a text anywhere in their ids; the server finds only beginnings."""

AT_ONCE = 200
"""How many of them are read together."""

ENOUGH_S = 1.5
"""After how many seconds no more are read for one page."""

FIRST_YEAR, LAST_YEAR = 1970, 9998
"""Between which years a place in the list can be; near the ends of the calendar no time can be added."""

AGES = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}


async def tasks(call: Call) -> Response:
    """`GET /tasks?skill=&lifecycle=&owner=&age=&text=&anywhere=&after=`: the tasks, the latest change first."""
    check_accept(call.request)
    made, wanted = int(time()), wanted_of(call)
    found, counts = await asyncio.gather(list_page(call, wanted, place_in(call.asked("after"))), _counts(call, wanted))
    given = {name: call.asked(name) for name in FILTERS}
    skills = sorted({*call.site.skills, *filter(None, [wanted.skill])})
    return call.page(
        "tasks.html",
        found=found,
        counts=counts,
        given=given,
        skills=skills,
        states=list(TaskState),
        ages=list(AGES),
        first=not call.asked("after"),
        views=views_of(call),
        made=made,
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
    text = call.asked("text").strip()
    return TaskFilter(
        begins=text if text and not _anywhere(call) else None,
        skill=call.asked("skill") or None,
        lifecycle=TaskState(lifecycle) if lifecycle else None,
        owner=owner if call.person.sees_all else call.person.name,
        since=datetime.now(UTC) - AGES[age] if age else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """Some of the tasks that fit the filters, the latest change first.

    Attributes:
        tasks: The tasks.
        following: The place where the next stretch begins, for an address; empty if this is the last.
        through: How many tasks were looked through for them; None if the server found them.
        back_to: When the last of those changed.
    """

    tasks: Sequence[Listed]
    following: str
    through: int | None = None
    back_to: datetime | None = None


async def list_page(call: Call, wanted: TaskFilter, place: Place | None, size: int = PAGE) -> ListPage:
    """The next tasks after a place: `size` of them, or fewer where a text is looked for anywhere in their ids."""
    text = call.asked("text").strip().lower()
    if text and _anywhere(call):
        return await _looked_through(call, wanted, place, text, size)
    found = await call.engine.find(wanted, after=place, limit=size + 1)  # the last one only says that there are more
    return ListPage(tasks=found[:size], following=written(found[size - 1].place) if len(found) > size else "")


async def _looked_through(call: Call, wanted: TaskFilter, place: Place | None, text: str, size: int) -> ListPage:
    found: list[Listed] = []
    through, until, over = 0, monotonic() + ENOUGH_S, False
    while through < SCANNED and len(found) < size and not over and (not through or monotonic() < until):
        some = await call.engine.find(wanted, after=place, limit=AT_ONCE)
        over = len(some) < AT_ONCE
        for one in some:
            through, place = through + 1, one.place
            if text in one.task_id.lower():
                found.append(one)
                if len(found) == size:
                    over = False
                    break
    return ListPage(
        tasks=found,
        following="" if over or place is None else written(place),
        through=through,
        back_to=None if place is None else place.at,
    )


def _anywhere(call: Call) -> bool:
    return call.asked("anywhere") == "yes"


def written(place: Place) -> str:
    """A place in the order of tasks, for an address."""
    return f"{place.at.isoformat()} {place.task_id}"


def place_in(given: str) -> Place | None:
    """The place that an address names; None if it names none, and the list begins at its start."""
    at, _, task_id = given.partition(" ")
    with suppress(ValueError):
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is not None and task_id and FIRST_YEAR <= moment.year <= LAST_YEAR:
            return Place(at=moment, task_id=task_id)
    return None


async def _counts(call: Call, wanted: TaskFilter) -> dict[TaskState, int]:
    """How many tasks there are in each state, with the other filters; none where the server cannot count them."""
    if call.asked("text").strip() and _anywhere(call):
        return {}
    each = [wanted.model_copy(update={"lifecycle": state}) for state in TaskState]
    return dict(zip(TaskState, await asyncio.gather(*map(call.engine.count, each)), strict=True))
