"""The skills: what each does, its graph with where a task is, and a form to start one."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from refold.core.authoring.skill import Skill
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.lifecycle import TaskState
from refold.engine import TaskFilter, UnknownSkill
from refold.static.diagram.svg import drawn
from refold.web.page.forms import fields_for, filled
from refold.web.page.frame import Call, check_accept, task_path


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
    """`GET /skills/SKILL?task=`: one skill, with the way that a task took through it."""
    check_accept(call.request)
    found = _skill(call)
    card = found.options.card
    wanted = found.options.input
    running = {}
    if call.person.sees_all:
        for state in (TaskState.RUNNING, TaskState.PAUSED, TaskState.BLOCKED, TaskState.RETRYING):
            running[state] = await call.engine.count(TaskFilter(skill=card.id, lifecycle=state))
    return call.page(
        "skill.html",
        card=card,
        fields=() if wanted is None else fields_for(wanted),
        graph=drawn(found),
        running=running,
        typed={},
        problem="",
        **await _place(call),
    )


async def _place(call: Call) -> dict[str, Any]:
    """The task whose place is shown in the graph, and the step that it is at; empty where there is none."""
    task_id = call.asked("task")
    if not task_id:
        return {"task_id": "", "place": ""}
    call.need_payloads()
    view = await call.view(task_id)
    snapshot = await call.engine.at(task_id, view.seq) if view.seq else None
    state = None if snapshot is None else snapshot.state
    step = state.get("step") if isinstance(state, dict) else None
    return {"task_id": task_id, "place": step if isinstance(step, str) else ""}


async def start(call: Call) -> Response:
    """`POST /skills/SKILL`: start a task."""
    found = _skill(call)
    card, wanted = found.options.card, found.options.input
    fields = () if wanted is None else fields_for(wanted)
    try:
        if fields:
            content = Content.from_data(filled(fields, call.form))
        else:
            text = call.form.get("text", "")
            if not text.strip():
                raise InputRejected("write what the task begins with")
            content = Content.from_text(text)
        view = await call.engine.start(
            card.id,
            content,
            task_id=call.form.get("id", "").strip() or None,
            stream=True,
            owner=call.person.name if call.person.proven else None,
            started_by=call.person.name,
        )
    except InputRejected as error:
        return call.page(
            "skill.html",
            status=409,
            card=card,
            fields=fields,
            graph=drawn(found),
            running={},
            typed=call.form,
            problem=error.reason,
            task_id="",
            place="",
        )
    return call.go(task_path(view.task_id), "The task has started.")
