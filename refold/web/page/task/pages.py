"""One task: its story as it happens, what it waits for and why, what it made, and what people can do about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic_core import to_json
from starlette.responses import Response, StreamingResponse

from refold.callbacks.address import without_addresses
from refold.core.commands import CallSkill
from refold.core.content import Artifact, Part
from refold.core.errors import InputRejected
from refold.core.events import SkillResult
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Receipt
from refold.core.lifecycle import TaskState
from refold.cost import model_calls, total
from refold.engine import EngineError, TaskView
from refold.record import ENDED, receipts
from refold.web.page.frame import Call, Refused, check_accept, json_response, task_path
from refold.web.page.items import grouped, items_of
from refold.web.page.streams import task_news
from refold.web.page.task.why import blocked_since, only_calls, why
from refold.words.costs import in_words
from refold.words.entries import consequences, event_text, moves_text
from refold.words.reasoning import without_reasoning
from refold.words.text import clean

ENTRIES = 100
"""How many entries of the story one page shows."""

EARLIER = 20
"""How many entries before them are read, for the names of the commands that they are about."""

CALLS, MESSAGES, ARTIFACTS = 200, 100, 200
"""How many calls, messages and artifacts one page shows, the newest."""

PARTS = 100
"""How many parts of one message or artifact a page shows."""

T = TypeVar("T")

IMAGES = frozenset({"image/avif", "image/gif", "image/jpeg", "image/png", "image/webp"})
"""Files that are shown; any other is only saved, since a browser might run what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An entry of the story, as the page tells it.

    Attributes:
        entry: The entry.
        text: What happened.
        lines: What followed.
        moved: The states that the task went through.
        children: The parts that the entry started or that brought it their results.
        done: The id of the command whose outcome the entry brings; empty otherwise.
    """

    entry: Entry
    text: str
    lines: tuple[str, ...]
    moved: str
    children: tuple[str, ...]
    done: str


def stories(entries: Sequence[Entry], *, payloads: bool) -> list[Told]:
    """Entries in words, each command by its name where one of them asked for it."""
    names = {one.invocation_id: one.command.subject for entry in entries for one in entry.commands}
    return [told(entry, payloads=payloads, names=names) for entry in entries]


def told(entry: Entry, *, payloads: bool, names: Mapping[str, str] | None = None) -> Told:
    """An entry in words; without what it holds for somebody who may not see that.

    Args:
        entry: The entry.
        payloads: Whether the person may see what it holds.
        names: The names of commands, by their ids.
    """
    kind = entry.event.kind.replace("_", " ")
    text = event_text(entry.event)
    about = str(getattr(entry.event, "gate", "") or getattr(entry.event, "invocation_id", ""))
    if name := (names or {}).get(about):
        text = text.replace(clean(about), clean(name), 1)
    started = [one.invocation_id for one in entry.commands if isinstance(one.command, CallSkill)]
    brought = [entry.event.invocation_id] if isinstance(entry.event, SkillResult) else []
    return Told(
        entry=entry,
        text=text if payloads else kind,
        lines=tuple(consequences(entry)) if payloads else (),
        moved=moves_text(entry),
        children=tuple(dict.fromkeys([*started, *brought])),
        done=str(getattr(entry.event, "invocation_id", "")),
    )


async def task(call: Call) -> Response:
    """`GET /task/TASK`: the task."""
    check_accept(call.request)
    standing = await _standing(call)
    newest: Sequence[Entry] = standing["newest"]
    view: TaskView = standing["view"]
    first = newest[0].seq - 1 if newest else view.seq
    last = newest[-1].seq if newest else first
    return call.page(
        "task.html",
        groups=grouped(items_of(standing["record"], call.person, view, blocked_since(newest))),
        story=stories(newest, payloads=call.person.payloads),
        first=first,
        last=last,
        live_after=min(standing["record"].seq, view.seq, last),
        more=False,
        entries=ENTRIES,
        **standing,
    )


async def head(call: Call) -> Response:
    """`GET /head/TASK`: how the task stands, as a part of its page."""
    return call.page("head.html", **await _standing(call))


async def _standing(call: Call) -> dict[str, Any]:
    """How the task stands, and what can be done about it."""
    # All at once, as the time goes into waiting; nothing of it is shown to somebody to whom the record is refused.
    record, view, offspring, schedule = await asyncio.gather(
        call.record(call.task_id),
        call.engine.look(call.task_id),
        call.engine.offspring(call.task_id),
        _schedule(call),
    )
    newest, unread = await _newest(call, view)
    recovered = any(one.how == "recovered" for one in offspring)
    dry = view.forked_from is not None and not view.forked_from.live
    return {
        "view": view.model_copy(update={"offspring": offspring, "schedule": schedule}),
        "record": record,
        "newest": newest,
        "unread": unread,
        # Each is of its own moment: where one is older than the other, the page has to hear what came in between.
        "ended": record.ended and view.status in ENDED,
        "why": await why(call.engine, record, view, newest),
        "only_calls": only_calls(record),
        "recoverable": view.lifecycle is TaskState.FAILED and bool(view.seq) and not recovered and not dry,
        "held": view.lifecycle is TaskState.PLANNED and "`refold release " in view.note,
    }


async def _schedule(call: Call) -> str | None:
    """The schedule that started the task."""
    return None if call.site.schedules is None else await call.site.schedules.of(call.task_id)


async def _newest(call: Call, view: TaskView) -> tuple[list[Entry], str]:
    """The newest entries; or none, and why they cannot be read."""
    if not view.seq:
        return [], ""
    try:
        after = max(0, view.seq - ENTRIES)
        return [entry async for entry in call.engine.journal(view.task_id, after=after)], ""
    except (EngineError, InputRejected) as error:
        return [], str(error)


async def waits(call: Call) -> Response:
    """`GET /waits/TASK`: what the task waits for, as a part of its page."""
    record, view = await asyncio.gather(call.record(call.task_id), call.engine.look(call.task_id))
    newest, _ = await _newest(call, view) if view.lifecycle is TaskState.BLOCKED else ([], "")
    groups = grouped(items_of(record, call.person, view, blocked_since(newest)))
    return call.page("waits.html", record=record, groups=groups)


async def story(call: Call) -> Response:
    """`GET /story/TASK?after=&until=`: entries, as a part of the task's page; or as a page of its own."""
    await call.record(call.task_id)
    after = call.number("after", 0)
    until = call.number("until", after + ENTRIES)
    entries = await _story(call, after, min(until, after + ENTRIES))
    last = entries[-1].entry.seq if entries else after
    template = "entries.html" if call.fragment else "story.html"
    # A part that is full is followed by the next at once, and not only when something changes again.
    shown: dict[str, Any] = {"story": entries, "first": after, "last": last, "more": len(entries) == ENTRIES}
    return call.page(template, task_id=call.task_id, entries=ENTRIES, **shown)


async def _story(call: Call, after: int, until: int) -> list[Told]:
    found: list[Entry] = []
    async with aclosing(call.engine.journal(call.task_id, after=max(0, after - EARLIER))) as entries:
        async for entry in entries:
            if entry.seq > until:
                break
            found.append(entry)
    return [one for one in stories(found, payloads=call.person.payloads) if one.entry.seq > after]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """A command of the skill, and what it came to.

    Attributes:
        id: Its invocation id.
        command: Kind and subject.
        issued: The entry that issued it.
        attempts: How often it was begun.
        receipt: Its receipt; None while it has none.
        since: When it was issued.
    """

    id: str
    command: str
    issued: int
    attempts: int
    receipt: Receipt | None
    since: datetime


async def calls(call: Call) -> Response:
    """`GET /calls/TASK?before=`: what the task asked for, with attempts, receipts and what model calls cost."""
    check_accept(call.request)
    record = await call.record(call.task_id)
    entries = [entry async for entry in call.engine.journal(call.task_id)]
    known = {one.invocation_id: one for one in receipts(entries)}
    retries: dict[str, int] = {}
    for entry in entries:
        for backoff in entry.backoffs:
            retries[backoff.invocation_id] = backoff.retry
    performed = [
        Performed(
            id=one.invocation_id,
            command=f"{one.command.kind} {one.command.subject}",
            issued=entry.seq,
            attempts=retries.get(one.invocation_id, 0) + 1,
            receipt=known.get(one.invocation_id),
            since=entry.at,
        )
        for entry in entries
        for one in entry.commands
    ]
    spent = list(model_calls(call.task_id, entries))
    shown = _newest_of(call, performed, CALLS)
    return call.page(
        "calls.html", record=record, performed=shown, spent=spent[-CALLS:], paid=len(spent), cost=in_words(total(spent))
    )


async def content(call: Call) -> Response:
    """`GET /content/TASK?before=`: messages, the newest last, and artifacts."""
    check_accept(call.request)
    call.need_payloads()
    record = await call.record(call.task_id)
    shown = _newest_of(call, record.messages, MESSAGES)
    return call.page("content.html", record=record, messages=shown, most=ARTIFACTS, parts=PARTS, images=IMAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest(Generic[T]):
    """Some of many things that happened one after the other.

    Attributes:
        of: These.
        first: How many came before them.
        later: How many came after them.
    """

    of: Sequence[T]
    first: int
    later: int


def _newest_of(call: Call, every: Sequence[T], size: int) -> Newest[T]:
    """The newest; those before number `before`, if the address names one."""
    end = call.number("before", len(every), least=min(1, len(every)), most=len(every))
    first = max(0, end - size)
    return Newest(of=every[first:end], first=first, later=len(every) - end)


async def artifact(call: Call) -> Response:
    """`GET /artifact/TASK?name=&part=`: a part of an artifact, to be saved; an image to be shown."""
    call.need_payloads()
    record = await call.heard(call.task_id)
    name = call.request.query_params.get("name")  # a name may hold any character
    found = next((one for one in record.artifacts if one.name == name), None)
    number = call.number("part", 0)
    if found is None or number >= len(found.parts):
        raise Refused(404, "the task has no such artifact")
    return _file(found, found.parts[number], number)


def _file(artifact: Artifact, part: Part, number: int) -> Response:
    kind = (part.media_type or "").lower()
    if part.raw is not None:
        body, ending = part.raw, "bin"
    elif part.text is not None:
        body, ending = part.text.encode(), "txt"
    elif part.url is not None:
        body, ending = part.url.encode(), "url.txt"
    else:
        body, ending = to_json(part.data, indent=2), "json"
    named = part.filename or (artifact.name if number == 0 and "." in artifact.name else f"{artifact.name}.{ending}")
    safe = "".join(letter if letter.isalnum() or letter in "._- " else "_" for letter in named)[:150].strip(". ")
    shown = part.raw is not None and kind in IMAGES
    ascii_name = safe.encode("ascii", "replace").decode().replace("?", "_") or "artifact"
    disposition = f'{"inline" if shown else "attachment"}; filename="{ascii_name}"'
    headers = {"Content-Disposition": disposition, "Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(body, media_type=kind if shown else "application/octet-stream", headers=headers)


async def raw(call: Call) -> Response:
    """`GET /raw/TASK?what=view|journal`: the task as JSON, as `refold show --json` and `refold journal --json`."""
    call.need_payloads()
    if call.asked("what") != "journal":
        return json_response(_raw(await call.view(call.task_id)))
    await call.record(call.task_id)
    entries = call.engine.journal(call.task_id)
    first = await anext(entries, None)  # what cannot be read is refused before the answer begins

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(entries):
            if first is not None:
                yield f"{_raw(first)}\n".encode()
            async for entry in entries:
                yield f"{_raw(entry)}\n".encode()

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _raw(value: TaskView | Entry) -> str:
    return without_addresses(without_reasoning(value.model_dump_json()))


async def live(call: Call) -> Response:
    """`GET /live/TASK?after=`: what happens to the task from now on, as an event stream; to an approver, for as long as
    one of its open gates lists the person.
    """
    record = await call.record(call.task_id)
    still = None if call.person.runs(record) else partial(call.record, call.task_id)
    after = call.number("after", 0)
    return call.site.streams.answer(task_news(call.engine, call.task_id, after, text=call.person.payloads, still=still))


ACTIONS = {
    "cancel": "Cancel the task",
    "recover": "Recover the task",
    "release": "Begin the task now",
}


async def ask(call: Call) -> Response:
    """`GET /ask/TASK?to=`: asks before the task is changed."""
    check_accept(call.request)
    action = call.asked("to")
    if action not in ACTIONS:
        raise Refused(404, "there is nothing to ask")
    await call.own(call.task_id)
    view = await call.engine.look(call.task_id)
    return call.page("ask.html", view=view, action=action, title=ACTIONS[action])


async def act(call: Call) -> Response:
    """`POST /act/TASK`: cancel, recover or release the task."""
    await call.own(call.task_id)
    match call.form.get("to"):
        case "cancel":
            reason = call.form.get("reason", "").strip()
            await call.engine.cancel(call.task_id, reason=reason, by=call.person.name)
            return call.go(task_path(call.task_id), "The task is canceled.")
        case "recover":
            return await _recover(call)
        case "release":
            await call.engine.release(call.task_id, by=call.person.name)
            return call.go(task_path(call.task_id), "The task begins.")
        case _:
            raise Refused(400, "the form names nothing that can be done; nothing happened")


async def _recover(call: Call) -> Response:
    try:
        view = await call.engine.recover(call.task_id, by=call.person.name)
    except InputRejected as error:
        raise Refused(409, str(error), "Not recovered") from None
    return call.go(task_path(view.task_id), f"This task was started to go on for {call.task_id}.")
