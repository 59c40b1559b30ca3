"""How a task was at any of its entries: the state there, what the entry changed, where a field came from; and forks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import islice

from pydantic import JsonValue
from pydantic_core import to_json
from starlette.responses import Response

from refold.callbacks.address import without_addresses
from refold.core.contracts.run import ContractedMachine
from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import digest_of
from refold.core.lifecycle import TaskState
from refold.differences import NOTHING, differences
from refold.engine import NoWorker, TaskExists
from refold.engine.refusals import check_task_id
from refold.engine.view import view_of
from refold.web.page.frame import Call, Refused, check_accept, json_response, task_path, whole
from refold.web.page.task.pages import EARLIER, ENTRIES, Told, stories, told
from refold.words.reasoning import unreasoned, without_reasoning

CHANGES = 200
"""How many differences one page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that an entry changed.

    Attributes:
        path: The field.
        was, now: Its values; None stands for null, see `came` and `gone`.
        came: It was not there before.
        gone: It is not there any more.
    """

    path: str
    was: JsonValue
    now: JsonValue
    came: bool
    gone: bool


async def at(call: Call) -> Response:
    """`GET /at/TASK?seq=`: the task as it was after an entry, and what that entry changed."""
    check_accept(call.request)
    call.need_payloads()
    runs = await call.runs(call.task_id)
    view = await call.engine.look(call.task_id)
    if not view.seq and view.note and view.lifecycle is not TaskState.PLANNED:
        raise NoWorker(f"the past of task {view.task_id!r} cannot be read now: {view.note}")
    if not view.seq:
        raise InputRejected("nothing has happened to this task yet, so there is no past to look at")
    seq = call.number("seq", view.seq, least=1, most=view.seq)
    now, before, entry = await asyncio.gather(_at(call, seq), _before(call, seq), _entry(call, seq))
    # It looks at all that the task held before and after; other requests are answered meanwhile.
    found = [] if now is None else await asyncio.to_thread(lambda: list(islice(_changes(before, now), CHANGES)))
    skill = call.site.skills.get(view.skill)
    return call.page(
        "at.html",
        view=view,
        seq=seq,
        then=None if now is None else view_of(now),
        held=None if now is None else now.state,
        fields=skill.validator.fields if isinstance(skill, ContractedMachine) else (),
        forks=runs and now is not None and not now.ended,
        told=None if entry is None else told(entry, payloads=True, names=_gates(before, now)),
        changes=found,
        many=len(found) == CHANGES,
        once=secrets.token_hex(4) if runs else "",
    )


async def state(call: Call) -> Response:
    """`GET /state/TASK?seq=`: the whole state after an entry, as JSON."""
    call.need_payloads()
    await call.record(call.task_id)
    now = await _at(call, call.number("seq", 0))
    if now is None:
        raise Refused(404, "the task has no such entry")
    return json_response(without_addresses(without_reasoning(to_json(now.state).decode())))


async def _at(call: Call, seq: int) -> Snapshot | None:
    """The task after an entry; None where there is none: before the first entry of a forked or recovered task."""
    try:
        return await call.engine.at(call.task_id, seq)
    except InputRejected:
        return None


async def _before(call: Call, seq: int) -> Snapshot | None:
    return await _at(call, seq - 1) if seq > 1 else None


def _gates(*states: Snapshot | None) -> dict[str, str]:
    """The names of the open gates and questions, by their ids."""
    return {one.gate: one.slot for state in states if state is not None for one in state.waits}


async def _entry(call: Call, seq: int) -> Entry | None:
    async with aclosing(call.engine.journal(call.task_id, after=seq - 1)) as entries:
        first = await anext(entries, None)
    return first if first is not None and first.seq == seq else None


_SHOWN = ("lifecycle", "progress", "reason", "messages", "artifacts", "waits", "pending", "state")


def _changes(before: Snapshot | None, now: Snapshot) -> Iterator[Change]:
    """What an entry changed of what people see: new messages by themselves, as earlier ones never change."""
    fields = {name for name in _SHOWN if before is None or getattr(before, name) != getattr(now, name)}
    said = 0 if before is None else len(before.messages)
    was = {} if before is None else before.model_dump(mode="json", include=fields - {"messages"})
    after = now.model_dump(mode="json", include=fields - {"messages"})
    new = {f"messages[{number}]": one.model_dump(mode="json") for number, one in enumerate(now.messages[said:], said)}
    was, after = ({key: unreasoned(side[key]) for key in _SHOWN if key in side} for side in (was, after))
    for one in differences(was, {**new, **after}):
        came, gone = one.was is NOTHING, one.now is NOTHING
        yield Change(path=one.path, was=None if came else one.was, now=None if gone else one.now, came=came, gone=gone)


async def explain(call: Call) -> Response:
    """`GET /explain/TASK?field=&upto=`: which step wrote a field, when, and from which others."""
    check_accept(call.request)
    call.need_payloads()
    await call.record(call.task_id)
    field = call.asked("field")
    if not field:
        raise Refused(404, "name a field of the state")
    upto = call.number("upto", 0) or None
    try:
        found, why = await call.engine.explain(call.task_id, field, upto=upto), ""
    except InputRejected as error:
        found, why = None, error.reason
    return call.page("explain.html", task_id=call.task_id, field=field, found=found, why=why, upto=upto)


async def fork(call: Call) -> Response:
    """`POST /fork/TASK`: a new task that branches off from an entry; dry unless the form says live."""
    await call.own(call.task_id)
    seq = whole(call.form.get("seq", ""))
    if seq is None:
        raise Refused(400, "the form names no entry, so nothing happened")
    live = call.form.get("live") == "yes"
    try:
        view = await call.engine.fork(call.task_id, at=seq, live=live, new_id=_new_id(call), by=call.person.name)
    except TaskExists as error:
        return call.go(task_path(error.task_id, "beside"), "This form has branched off this task already.")
    said = "It branches off, and its effects are real." if live else "It branches off; no effect takes place."
    return call.go(task_path(view.task_id, "beside"), said)


def _new_id(call: Call) -> str | None:
    """The id of the branch, the same however often its form is sent; None, for a form that has no name, takes a free
    one. A part's id has slashes, and Temporal's own tools give any: where such an id begins none that a person may
    give, its hash does.
    """
    if not call.once:
        return None
    with suppress(InputRejected):
        return check_task_id(f"{call.task_id}.f{call.once}")
    return f"{digest_of(call.task_id)[:16]}.f{call.once}"


async def beside(call: Call) -> Response:
    """`GET /beside/TASK`: a fork next to the task that it branched off from, from that entry on."""
    check_accept(call.request)
    call.need_payloads()
    view = await call.view(call.task_id)
    if view.forked_from is None:
        raise Refused(404, f"{call.task_id} is no fork, so there is nothing to show beside it")
    origin = view.forked_from
    other = await call.view(origin.task_id)
    mine, theirs = await asyncio.gather(_from(call, call.task_id, origin.seq), _from(call, origin.task_id, origin.seq))
    return call.page("beside.html", view=view, other=other, fork=origin, mine=mine, theirs=theirs)


async def _from(call: Call, task_id: str, after: int) -> list[Told]:
    found: list[Entry] = []
    async with aclosing(call.engine.journal(task_id, after=max(0, after - EARLIER))) as entries:
        async for entry in entries:
            found.append(entry)
            if entry.seq == after + ENTRIES:
                break
    return [one for one in stories(found, payloads=True) if one.entry.seq > after]
