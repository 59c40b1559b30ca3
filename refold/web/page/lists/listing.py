"""All tasks: filters in the address, counts, and the same action for several tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from refold.core.errors import InputRejected
from refold.core.lifecycle import TaskState
from refold.engine import EngineError, Listed, Place, TaskFilter
from refold.web.page.frame import Call, Refused, check_accept

PAGE = 50
"""How many tasks one page shows."""

SCANNED = 2_000
"""How many tasks are searched for a text in their ids, for one page."""

AT_ONCE = 10
"""How many tasks are changed together."""

AGES = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}


async def tasks(call: Call) -> Response:
    """`GET /tasks?skill=&lifecycle=&owner=&age=&text=&after=`: the tasks, the latest change first."""
    check_accept(call.request)
    wanted = _wanted(call)
    found, following = await _page(call, wanted)
    counts = await _counts(call, wanted)
    given = {name: call.asked(name) for name in ("skill", "lifecycle", "owner", "age", "text")}
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
    )


def _wanted(call: Call) -> TaskFilter:
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


async def _page(call: Call, wanted: TaskFilter) -> tuple[list[Listed], str]:
    """A page of tasks, and where the next begins; empty if this is the last."""
    place, text = place_in(call.asked("after")), call.asked("text").strip().lower()
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
        if moment.tzinfo is not None and task_id:
            return Place(at=moment, task_id=task_id)
    return None


async def _counts(call: Call, wanted: TaskFilter) -> dict[TaskState, int]:
    """How many tasks there are in each state, with the other filters."""
    each = [wanted.model_copy(update={"lifecycle": state}) for state in TaskState]
    return dict(zip(TaskState, await asyncio.gather(*map(call.engine.count, each)), strict=True))


async def bulk(call: Call) -> Response:
    """`POST /bulk`: cancel, recover or retry the chosen tasks; asks first, then says how each went."""
    chosen = list(dict.fromkeys(call.fields.get("task", [])))
    action = call.form.get("to", "")
    if action not in _ACTIONS:
        raise Refused(400, "choose what to do with the tasks; nothing happened")
    if not chosen:
        raise InputRejected("no task was chosen, so nothing happened")
    if call.form.get("sure") != "yes":
        return call.page("bulk.html", tasks=chosen, action=action, asks=True, done={}, went=0)
    done: dict[str, str] = {}
    for start in range(0, len(chosen), AT_ONCE):
        some = chosen[start : start + AT_ONCE]
        said = await asyncio.gather(*(_one(call, one, action) for one in some))
        done |= dict(zip(some, said, strict=True))
    went = sum(not said for said in done.values())
    return call.page("bulk.html", tasks=chosen, action=action, asks=False, done=done, went=went)


async def _one(call: Call, task_id: str, action: str) -> str:
    """Why the action was refused for a task; empty if it took place."""
    try:
        await call.record(task_id)
        await _ACTIONS[action](call, task_id)
    except (EngineError, InputRejected) as error:
        return str(error)
    return ""


async def _cancel(call: Call, task_id: str) -> None:
    await call.engine.cancel(task_id, reason=f"canceled by {call.person.name}")


async def _recover(call: Call, task_id: str) -> None:
    await call.engine.recover(task_id, by=call.person.name)


async def _retry(call: Call, task_id: str) -> None:
    await call.engine.resolve(task_id, retry=True, by=call.person.name)


_ACTIONS: dict[str, Callable[[Call, str], Awaitable[None]]] = {"cancel": _cancel, "recover": _recover, "retry": _retry}
