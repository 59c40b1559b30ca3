"""Extensions of the protocol: which of them a call has activated; and the timeline, by which callers see a task's past.

Without the timeline a task shows what it said and handed over, but no names of steps, tools or models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from datetime import datetime
from typing import Literal

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.types import Task
from a2a.types import TaskState as A2AState
from pydantic import JsonValue
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refold.a2a.caller import caller_of, owns
from refold.a2a.convert import STATE
from refold.a2a.data import struct_of
from refold.a2a.settings import TIMELINE
from refold.core.fold.journal import Entry
from refold.engine import Engine, EngineError
from refold.record import TaskRecord
from refold.seen.logs import logger

MOST_ENTRIES = 1000
"""How many entries a timeline has, the newest."""

log = logger("refold.a2a")


def activated(headers: Headers, declared: Collection[str]) -> str:
    """The declared extensions that a request asks for, as its response lists them in `A2A-Extensions`.

    Source: A2A specification 1.0, section 3.2.6.
    """
    asked = get_requested_extensions(headers.getlist(HTTP_EXTENSION_HEADER))
    return ", ".join(sorted(asked.intersection(declared)))


class Activated:
    """Middleware that names in the response the extensions that a request has activated."""

    def __init__(self, app: ASGIApp, *, declared: Collection[str]) -> None:
        self.app = app
        self.declared = declared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        active = activated(Headers(scope=scope), self.declared)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HTTP_EXTENSION_HEADER] = active
            await send(message)

        await self.app(scope, receive, named if active else send)


class Timeline:
    """Adds a task's past to its metadata, for callers that ask for it.

    Args:
        engine: Has the journals.
        shown: Nothing; the statuses with their times; or, beside them, what happened when.
    """

    def __init__(self, engine: Engine, shown: Literal["none", "status", "journal"]) -> None:
        self.engine = engine
        self.shown = shown

    async def add(self, task: Task, record: TaskRecord, context: ServerCallContext) -> Task:
        """The task, with its timeline if that is offered, and its owner asks. A journal that nobody can read is left
        out.
        """
        asked = TIMELINE in context.requested_extensions and owns(caller_of(context), record)
        if self.shown == "none" or not asked or record.note:
            return task
        statuses: deque[JsonValue] = deque(maxlen=MOST_ENTRIES)
        entries: deque[JsonValue] = deque(maxlen=MOST_ENTRIES)
        try:
            async for entry in self.engine.journal(task.id):
                if entry.status is not None and not entry.refused:
                    state = A2AState.Name(STATE[entry.status])
                    statuses.append({"state": state, "timestamp": _time(entry.at), "seq": entry.seq})
                entries.append(_shown(entry))
        except EngineError as error:  # the task may have just taken a message, and is not to be sent it again
            log.warning("timeline_left_out", task_id=task.id, why=str(error))
            return task
        past: dict[str, JsonValue] = {"statuses": [*statuses]}
        if self.shown == "journal":
            past["entries"] = [*entries]
        task.metadata.get_or_create_struct(TIMELINE).MergeFrom(struct_of(past))
        return task


def _shown(entry: Entry) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"seq": entry.seq, "timestamp": _time(entry.at), "event": entry.event.kind}
    if entry.commands:
        shown["commands"] = [
            {"id": one.invocation_id, "kind": one.command.kind, "name": one.command.subject} for one in entry.commands
        ]
    if entry.moves:
        shown["lifecycle"] = entry.moves[-1].to_state.value
    if entry.audit:
        shown["steps"] = [one.stage for one in entry.audit]
    if entry.refused:
        shown["refused"] = True
    return shown


def _time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
