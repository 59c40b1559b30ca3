"""What waits for the person: the inbox, and each gate at an address of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import time

from pydantic_core import to_json
from starlette.responses import Response

from refold.callbacks.address import without_addresses
from refold.core.commands import AskApproval
from refold.core.lifecycle import TaskState
from refold.engine import EngineError, Listed
from refold.web.page.frame import Call, Refused, check_accept, json_response
from refold.web.page.items import Item, changed_since, decisions_in, earlier_grant, grouped, items_of, silent

PAGE = 20
"""How many items one page shows."""

AT_ONCE = 20
"""How many tasks are read together."""

READ = 200
"""How many waiting tasks one page reads at most, to find those that wait for the person."""


@dataclass(slots=True, kw_only=True)
class Inbox:
    """A page of the inbox.

    Attributes:
        mine: What waits for the person, oldest first.
        others: What waits for others.
        next: Where the next page begins; empty if this is the last.
        looked: Through how many waiting tasks it looked.
        lacks: Whether more tasks wait than are put in order, so that the oldest are on no page.
    """

    mine: list[Item] = field(default_factory=list)
    others: list[Item] = field(default_factory=list)
    next: str = ""
    looked: int = 0
    lacks: bool = False


async def inbox(call: Call) -> Response:
    """`GET /`: the inbox."""
    check_accept(call.request)
    made = int(time())
    found = await read(call, call.asked("after"))
    return call.page("inbox.html", inbox=found, groups=grouped(found.mine), after=call.asked("after"), made=made)


async def read(call: Call, after: str) -> Inbox:
    """A page of what waits, after the place where the page before ended."""
    listed = await call.site.waiting.oldest_first(call.engine)
    found = Inbox(lacks=call.site.waiting.more)
    rest = [one for one in listed if _place(one) > after]
    for start in range(0, min(len(rest), READ), AT_ONCE):
        some = rest[start : start + AT_ONCE]
        found.looked += len(some)
        for items in await asyncio.gather(*(_items(call, one) for one in some)):
            for item in items:
                (found.others if item.why_not else found.mine).append(item)
        if len(found.mine) >= PAGE:
            break
    else:
        some = rest[:READ][-1:]
    found.next = _place(some[-1]) if some and _place(some[-1]) != _place(rest[-1]) else ""
    for items in (found.mine, found.others):
        items.sort(key=lambda item: (item.since is None, item.since, item.task_id))
    return found


def _place(one: Listed) -> str:
    return f"{_text(one.status_at)} {one.task_id}"


def _text(at: datetime) -> str:
    return f"{at.timestamp():020.6f}"


async def _items(call: Call, listed: Listed) -> Sequence[Item]:
    """What waits in a task that the person may see."""
    try:
        record = await call.record(listed.task_id)
        blocked = listed.lifecycle is TaskState.BLOCKED
        view = await call.engine.look(listed.task_id) if blocked else None
    except EngineError:
        return ()  # it is not theirs, was deleted meanwhile, or cannot be read now
    items = list(items_of(record, call.person, view, listed.moved_at))
    if not items and record.note and not record.waits and not record.ended:
        return (silent(record),)
    if not items and not record.waits:
        call.site.waiting.waits_no_longer(listed.task_id)
    return items


async def gate(call: Call) -> Response:
    """`GET /gate/TASK?gate=ID`: one gate or question, with what was decided before."""
    check_accept(call.request)
    record = await call.record(call.task_id)
    entries = [entry async for entry in call.engine.journal(call.task_id)]
    named = call.asked("gate")
    view = await call.engine.look(call.task_id)
    item = next((one for one in items_of(record, call.person, view) if one.id == named), None)
    before = None if item is None or item.kind != "gate" else earlier_grant(entries, item.name, item.id)
    # It looks at all that both show; other requests are answered meanwhile.
    changed = [] if before is None or item is None else await asyncio.to_thread(changed_since, item.show, before.show)
    return call.page(
        "gate.html",
        task_id=call.task_id,
        skill=record.skill,
        item=item,
        names={one.invocation_id: one.command.subject for entry in entries for one in entry.commands},
        before=before,
        changed=changed,
        decisions=decisions_in(entries),
        here_decided=decisions_in(entries, named),
    )


async def show(call: Call) -> Response:
    """`GET /show/TASK?gate=ID`: all of an open gate's data as JSON, also what looks like a model's reasoning."""
    call.need_payloads()
    record = await call.heard(call.task_id)
    ask = next((wait.ask for wait in record.waits if wait.gate == call.asked("gate")), None)
    if not isinstance(ask, AskApproval):
        raise Refused(404, "nothing waits here any more: the gate is closed")
    return json_response(without_addresses(to_json(ask.show).decode()))
