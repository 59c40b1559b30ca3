"""The schedules, which start tasks by the clock: when each is due, what it has started, and forms to look after it."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from refold.engine import EngineError, ScheduleNotFound, ScheduleView
from refold.web.page.frame import Call, Refused, Schedules, check_accept, task_path

MOST = 200
"""How many schedules one page shows."""

RUNS = 20
"""How many of a schedule's tasks are shown, the newest."""

NOTE_CHARS = 2_000

AT_ONCE = 20
"""How many schedules are read together."""

ACTIONS = {"pause": "Pause the schedule", "resume": "Resume the schedule", "run": "Start a task of the schedule now"}


def _schedules(call: Call) -> Schedules:
    if call.site.schedules is None:
        raise Refused(404, "there are no schedules here: what runs the tasks starts none by the clock")
    return call.site.schedules


async def schedules(call: Call) -> Response:
    """`GET /schedules?after=`: the schedules that the person may see, with when each is due next."""
    check_accept(call.request)
    first = call.number("after", 0)
    found: list[ScheduleView] = []
    number = 0
    async for one in _schedules(call).list():
        number += 1
        if number > first + MOST:
            break
        if number > first:
            found.append(one)
    shown = found if call.person.sees_all else await _own(call, found)
    last = first + len(found)
    return call.page("schedules.html", schedules=shown, first=first, last=last, more=number > last)


async def _own(call: Call, listed: list[ScheduleView]) -> list[ScheduleView]:
    """Those whose tasks are the person's."""
    found: list[ScheduleView] = []
    for start in range(0, len(listed), AT_ONCE):
        some = (_schedules(call).look(one.id) for one in listed[start : start + AT_ONCE])
        for one in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(one, ScheduleView) and one.owner == call.person.name:
                found.append(one)
            elif isinstance(one, BaseException) and not isinstance(one, EngineError):
                raise one
    return found


async def _seen(call: Call) -> ScheduleView:
    """The schedule that the address names, if the person may see it.

    Raises:
        ScheduleNotFound: There is none, or it is not theirs.
    """
    id = str(call.request.path_params["schedule"])
    view = await _schedules(call).look(id)
    if not call.person.sees_all and view.owner != call.person.name:
        raise ScheduleNotFound(id)
    return view


async def schedule(call: Call) -> Response:
    """`GET /schedules/SCHEDULE?to=`: one schedule, with its newest tasks; with `to`, asks before it is changed."""
    check_accept(call.request)
    view = await _seen(call)
    action = call.asked("to")
    if action:
        if action not in ACTIONS:
            raise Refused(404, f"a schedule can be told to {', '.join(ACTIONS)}, not {action!r}")
        return call.page("schedule_ask.html", schedule=view, action=action, title=ACTIONS[action])
    runs = await _schedules(call).runs(view.id, limit=RUNS)
    return call.page("schedule.html", schedule=view, runs=runs)


async def act(call: Call) -> Response:
    """`POST /schedules/SCHEDULE`: pause it, resume it, or start a task of it now."""
    view = await _seen(call)
    name = call.person.name
    said = call.form.get("note", "").strip()[:NOTE_CHARS]
    match call.form.get("to"):
        case "pause":
            await _schedules(call).pause(view.id, said or f"paused by {name}")
            return call.go(task_path(view.id, "schedules"), "The schedule is paused. Open tasks go on.")
        case "resume":
            await _schedules(call).resume(view.id, said or f"resumed by {name}")
            return call.go(task_path(view.id, "schedules"), "The schedule goes on.")
        case "run":
            task_id = await _schedules(call).run_now(view.id)
            return call.go(task_path(task_id), f"This task was started by schedule {view.id}.")
        case _:
            raise Refused(400, "the form names nothing that can be done; nothing happened")
