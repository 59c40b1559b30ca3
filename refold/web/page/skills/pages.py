"""The pages of the skills: what each does, its graph with the ways of tasks, and a form to start one."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from refold.core.authoring.skill import Skill
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.lifecycle import TaskState
from refold.engine import EngineError, PayloadTooLarge, TaskExists, TaskFilter, UnknownSkill
from refold.engine.refusals import checked
from refold.static.diagram.graph import nodes_of
from refold.static.diagram.layout import Move, drawn
from refold.web.page.forms import fields_for, filled
from refold.web.page.frame import Call, Refused, check_accept, task_path
from refold.web.page.skills.ways import Way, way_of

RECENT, MOST_RECENT = 20, 50
"""Over how many tasks moves are counted, and over how many at the most."""

OPEN = (TaskState.RUNNING, TaskState.PAUSED, TaskState.BLOCKED, TaskState.RETRYING)
SHOWN_PLACES = 100
"""How many places of a task's way are written out: its last."""


async def skills(call: Call) -> Response:
    """`GET /skills`: the skills that are served here."""
    check_accept(call.request)
    return call.page("skills.html", skills=[one.options.card for one in call.site.skills.values()])


def _skill(call: Call) -> Skill:
    name = str(call.request.path_params["skill"])
    if name not in call.site.skills:
        raise UnknownSkill(name, list(call.site.skills))
    return call.site.skills[name]


async def skill(call: Call) -> Response:
    """`GET /skills/SKILL?task=&recent=`: one skill, with the way that a task took, or the moves of the newest tasks."""
    check_accept(call.request)
    found = _skill(call)
    running = await _running(call, found) if call.person.sees_all else {}
    if call.asked("task"):
        return _page(call, found, running=running, **await _way(call, found, call.asked("task")))
    if call.asked("recent"):
        return _page(call, found, running=running, **await _recent(call, found))
    return _page(call, found, running=running)


async def _running(call: Call, found: Skill) -> dict[TaskState, int]:
    """How many tasks of a skill are open, by state."""
    each = [TaskFilter(skill=found.options.card.id, lifecycle=state) for state in OPEN]
    return dict(zip(OPEN, await asyncio.gather(*map(call.engine.count, each)), strict=True))


def _page(call: Call, found: Skill, *, status: int = 200, moves: Counter[Move] | None = None, **more: Any) -> Response:
    wanted = found.options.input
    said = {"running": {}, "typed": {}, "problem": "", "task_id": "", "way": Way(), "why": ""}
    said |= {"places": (), "stands_at": "", "counted": None, **more}
    return call.page(
        "skill.html",
        status=status,
        card=found.options.card,
        fields=() if wanted is None else fields_for(wanted),
        graph=drawn(found, moves or {}),
        recent=RECENT,
        once=secrets.token_hex(4),
        **said,
    )


async def _way(call: Call, found: Skill, task_id: str) -> dict[str, Any]:
    """The way of a task, and why it is not known, if so."""
    call.need_payloads()
    view = await call.view(task_id)
    if view.skill != found.options.card.id:
        raise Refused(404, f"task {task_id!r} is one of skill {view.skill!r}, and this is {found.options.card.id!r}")
    try:
        way, why = await way_of(call.engine, found, view), ""
    except InputRejected as error:
        way, why = Way(), error.reason
    stands_at = nodes_of(found).get(way.at, way.at)
    shown = way.places[-SHOWN_PLACES:]
    return {"task_id": task_id, "way": way, "why": why, "moves": way.moves, "places": shown, "stands_at": stands_at}


async def _recent(call: Call, found: Skill) -> dict[str, Any]:
    """Which moves the newest tasks took that the person may see."""
    call.need_payloads()
    owner = None if call.person.sees_all else call.person.name
    wanted = TaskFilter(skill=found.options.card.id, owner=owner)
    tasks = await call.engine.find(wanted, limit=call.number("recent", RECENT, least=1, most=MOST_RECENT))
    counted = await call.site.ways.counted(call.engine, found, tasks)
    return {"counted": counted, "moves": counted.moves}


async def start(call: Call) -> Response:
    """`POST /skills/SKILL`: start a task. A form that is sent twice leads to the task that it has started."""
    found = _skill(call)
    known = f"{found.options.card.id}-{call.once}" if call.once else None
    card, wanted = found.options.card, found.options.input
    try:
        if wanted is not None:
            content = checked(Content.from_data, data=filled(fields_for(wanted), call.form))
        else:
            text = call.form.get("text", "")
            if not text.strip():
                raise InputRejected("write what the task begins with")
            content = Content.from_text(text)
        view = await call.engine.start(
            card.id,
            content,
            task_id=call.form.get("id", "").strip() or known,
            stream=True,
            delivery_id=_delivery(call),
            owner=call.person.name if call.person.proven else None,
            started_by=call.person.name,
        )
    except (InputRejected, PayloadTooLarge) as error:
        return _page(call, found, status=409, typed=call.form, problem=str(error))
    except TaskExists as error:
        if error.task_id == known or await _started_here(call, error.task_id):
            said = "This form has started this task already. To start another one, open the skill again."
            return call.go(task_path(error.task_id), said)
        problem = f"there is a task {error.task_id!r} already; choose another id, or leave it empty"
        return _page(call, found, status=409, typed=call.form, problem=problem)
    begun = view.lifecycle is not TaskState.PLANNED
    said = "The task has started." if begun else "The task is there, and begins once a worker takes it."
    return call.go(task_path(view.task_id), said)


def _delivery(call: Call) -> str | None:
    """The id of the form as the first message of a task; None if the form has none."""
    return f"page:{call.once}" if call.once else None


async def _started_here(call: Call, task_id: str) -> bool:
    """Whether this very form has started a task, under an id that the person gave."""
    with suppress(EngineError):
        said = (await call.record(task_id)).messages[:1]
        return [one.delivery_id for one in said] == [_delivery(call)] != [None]
    return False
