"""What every address of the page has in common: who asks, from where, for what; and how it is answered.

Rule 1: nothing is answered before the host is right and the person is known; nothing changes before the request is
  known to come from this page.
Rule 2: every text may be hostile. Templates escape all they are given, and the policy of a response lets a browser run
  nothing but the scripts that come with this package.
Rule 3: whatever the engine refuses becomes one sentence, and a status that says whose turn it is.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, urlencode

from markupsafe import Markup
from pydantic import JsonValue
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from refold.core.authoring.skill import Skill
from refold.core.errors import InputRejected
from refold.core.lifecycle import TaskState
from refold.divergence import DIFFERS
from refold.engine import (
    CodecError,
    CodeChanged,
    Engine,
    EngineError,
    Listed,
    NotConnected,
    NoWorker,
    ScheduleNotFound,
    ScheduleView,
    StorageError,
    TaskExists,
    TaskNotFound,
    TaskView,
    UnknownSkill,
)
from refold.record import TaskRecord
from refold.web.page.people import Access, Person
from refold.web.page.skills.ways import Ways
from refold.web.page.streams import OpenStreams
from refold.web.page.templates import render
from refold.web.page.waiting import Waiting

FORM_S = 30.0
"""The longest time to receive a form, in seconds; as long as the gateway waits for a body."""

BODY_BYTES = 2 * 1024 * 1024
"""The largest form that is read."""

MOST_FIELDS = 4_000
"""The most fields of a form. One that people type into counts twice: a hash of its first value is sent along."""

AS = "as"
"""The field of a form, and of the address of a part, that names the person for whom the page was made: nothing is done
in the name of another, and no part is replaced by another's."""

SAID = "refold_said"
"""The cookie that carries one sentence to the next page."""

SAID_BYTES = 2_000
"""The longest sentence in the cookie `SAID`, in bytes. Browsers take 4,096 bytes, and the cookie also has the task's id
and a signature, all in base64."""

ONCE = re.compile(r"[0-9a-f]{8}")
"""The id of one showing of a form that starts a task: the form starts one task, however often it is sent."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

# Source: who has to act. 4xx: the person; 503: whoever runs the server or the workers.
STATUS: Mapping[type[EngineError | InputRejected], int] = {
    TaskNotFound: 404,
    UnknownSkill: 404,
    ScheduleNotFound: 404,
    TaskExists: 409,
    InputRejected: 409,
    CodeChanged: 503,
    NoWorker: 503,
    NotConnected: 503,
    CodecError: 503,
    StorageError: 503,
}


class Schedules(Protocol):
    """What starts tasks by the clock: `TemporalEngine.schedules`, whose methods say what each does."""

    def list(self) -> AsyncIterator[ScheduleView]:
        """All schedules."""
        ...

    async def look(self, id: str) -> ScheduleView:
        """One schedule; raises `ScheduleNotFound`, as the following do."""
        ...

    async def runs(self, id: str, *, limit: int = 20) -> Sequence[Listed]:
        """The tasks that it has started, the newest first; those of one that was deleted, too."""
        ...

    async def of(self, task_id: str) -> str | None:
        """The schedule that started a task; None if none did."""
        ...

    async def pause(self, id: str, note: str = ...) -> ScheduleView:
        """Start nothing until `resume`."""
        ...

    async def resume(self, id: str, note: str = ...) -> ScheduleView:
        """Start tasks again."""
        ...

    async def run_now(self, id: str) -> str:
        """Start a task now, and return its id; `InputRejected` if none could be started."""
        ...


class Refused(Exception):
    """The request is answered with a sentence instead of what it asked for; the title is the status's, or another."""

    def __init__(self, status: int, message: str, title: str = "") -> None:
        self.status, self.message, self.title = status, message, title
        super().__init__(message)


@dataclass(slots=True, kw_only=True)
class Site:
    """The page as a whole.

    Attributes:
        engine: Runs the tasks.
        access: Who may use the page.
        skills: The skills that can be drawn and started from here, by id.
        temporal_ui: The address of Temporal's UI for this namespace, up to the task's id; None shows no link.
        schedules: What starts tasks by the clock; None if nothing does.
        streams: The event streams of open pages.
        ways: The ways of ended tasks, kept for the graphs.
        waiting: The tasks that wait for people.
    """

    engine: Engine
    access: Access
    skills: Mapping[str, Skill] = field(default_factory=dict)
    temporal_ui: str | None = None
    schedules: Schedules | None = None
    streams: OpenStreams = field(default_factory=OpenStreams)
    ways: Ways = field(default_factory=Ways)
    waiting: Waiting = field(default_factory=Waiting)


@dataclass(kw_only=True)
class Call:
    """One request of a person.

    Attributes:
        site: The page.
        request: The request; its form has been read.
        person: Who sends it.
        form: The fields of a form, the last value of each; empty for a GET.
        fields: The same, all values of each.
    """

    site: Site
    request: Request
    person: Person
    form: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        """What runs the tasks."""
        return self.site.engine

    @cached_property
    def task_id(self) -> str:
        """The task that the address names."""
        return str(self.request.path_params["task_id"])

    @property
    def once(self) -> str:
        """The form's id, see `ONCE`; empty if it has none."""
        given = self.form.get("once", "")
        return given if ONCE.fullmatch(given) else ""

    def asked(self, name: str) -> str:
        """A value of the address's query, without NUL, which no id holds and no database takes."""
        return self.request.query_params.get(name, "").replace("\0", "")

    def number(self, name: str, usual: int, *, least: int = 0, most: int = 1_000_000_000) -> int:
        """A number of the address's query. Other text counts as not given; a number beyond a bound as the bound."""
        given = whole(self.asked(name))
        return usual if given is None else max(least, min(given, most))

    async def record(self, task_id: str) -> TaskRecord:
        """A task that the person may see.

        Raises:
            TaskNotFound: There is none, or the person may not see it.
        """
        record = await self.engine.record(task_id)
        if not self.person.sees(record):
            raise TaskNotFound(task_id)
        return record

    async def heard(self, task_id: str) -> TaskRecord:
        """A task of which all is known, so that what it lacks is not there; raises as `record`.

        Raises:
            NoWorker: It has begun, and its worker does not say what it holds.
        """
        record = await self.record(task_id)
        if record.note and not record.ended and record.lifecycle is not TaskState.PLANNED:
            raise NoWorker(f"what task {task_id!r} holds cannot be read now: {record.note}")
        return record

    async def own(self, task_id: str) -> TaskRecord:
        """A task that the person may answer and change; raises as `record`.

        Raises:
            Refused: The person is only listed at one of its gates.
        """
        record = await self.record(task_id)
        if not self.person.runs(record):
            raise Refused(
                403,
                f"task {task_id!r} is another owner's: {self.person.name} may decide at its gates and do nothing else "
                "to it, so nothing happened; ask its owner, or whoever runs the page, who can let you see every task",
            )
        return record

    async def runs(self, task_id: str) -> bool:
        """Whether `own` lets the person have the task; raises as `record`."""
        return self.person.sees_all or self.person.runs(await self.record(task_id))

    async def view(self, task_id: str) -> TaskView:
        """The present state of a task that the person may see; raises as `record`."""
        if not self.person.sees_all:
            await self.record(task_id)
        return await self.engine.look(task_id)

    def need_payloads(self) -> None:
        """Refuse a person who may not see what tasks hold."""
        if not self.person.payloads:
            raise Refused(403, f"{self.person.name} may not see what tasks hold; whoever runs the page can allow it")

    def url(self, path: str, **query: Any) -> str:
        """The address of a path of the page, wherever it is mounted; names whose value is None are left out."""
        return url(self.request, path, **query)

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page, or a fragment of one."""
        return page(self.site, self.request, template, self.person, status=status, **values)

    def go(self, path: str, said: str = "", *, about: str = "", **query: Any) -> Response:
        """Send the browser to a path, with a sentence on what happened, and a link to the task that it is about."""
        return go(self.site, self.request, self.url(path, **query), said, about)

    @property
    def fragment(self) -> bool:
        """Whether htmx asks, for a part of a page."""
        return "hx-request" in self.request.headers


Handler = Callable[[Call], Awaitable[Response]]

LONGEST_NUMBER = 18
"""The most digits of a number in an address or a form."""


def whole(given: str) -> int | None:
    """A text of digits as a number, one of too many digits as the largest; None for any other text."""
    if not (given.isascii() and given.isdigit()):
        return None
    return int(given) if len(given) <= LONGEST_NUMBER else 10**LONGEST_NUMBER


def root(request: Request) -> str:
    """The path under which the page is mounted; empty if it is the whole."""
    return str(request.scope.get("root_path", ""))


def url(request: Request, path: str, **query: Any) -> str:
    """See `Call.url`."""
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{root(request)}{path}{f'?{urlencode(given)}' if given else ''}"


def task_path(task_id: str, under: str = "task") -> str:
    """The path of a task, or of what else has an id, which may hold anything, slashes too."""
    return f"/{under}/{quote(task_id, safe='')}"


def page(
    site: Site, request: Request, template: str, person: Person | None, *, status: int = 200, **values: Any
) -> Response:
    """See `Call.page`."""

    def address(path: str, **query: Any) -> str:
        return url(request, path, **query)

    def of_person(part: str) -> str:
        return f"{part}{'&' if '?' in part else '?'}{urlencode({AS: person.name})}" if person is not None else part

    said = site.access.read(request.cookies.get(SAID, ""), "said")
    values.setdefault("said", said["text"] if said else "")
    values.setdefault("about", said.get("about", "") if said else "")
    html = render(
        template,
        url=address,
        schedule_url=lambda id, **query: url(request, task_path(id, "schedules"), **query),
        task_url=lambda task_id, under="task", **query: url(request, task_path(task_id, under), **query),
        person=person,
        reason=str if person is not None and person.payloads else _unquoted,
        me=Markup('<input type="hidden" name="{}" value="{}">').format(AS, person.name) if person is not None else "",
        of_person=of_person,
        here=request.url.path.removeprefix(root(request)) or "/",
        temporal_ui=site.temporal_ui,
        known_skills=site.skills,
        by_clock=site.schedules is not None,
        **values,
    )
    response = Response(html, status, media_type="text/html")
    if said:
        response.delete_cookie(SAID, path=cookie_path(request))
    return response


def _unquoted(reason: str) -> str:
    """A reason without the recorded values that it quotes, where the skill's code differs from what was recorded."""
    before, differs, _ = reason.partition(DIFFERS)
    return before + differs


def go(site: Site, request: Request, where: str, said: str = "", about: str = "") -> Response:
    """See `Call.go`."""
    response = RedirectResponse(where, 303)
    if said:
        shown = said.encode()[:SAID_BYTES].decode(errors="ignore")
        value = site.access.signed({"text": shown, "about": about}, "said", 60)
        set_cookie(site, request, response, SAID, value, 60)
    return response


def cookie_path(request: Request) -> str:
    """Where the page's cookies are sent: to the page alone."""
    return f"{root(request)}/"


def set_cookie(site: Site, request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    """Set a cookie that no script reads and no other site's form sends."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=cookie_path(request),
        httponly=True,
        samesite="lax",
        secure=site.access.encrypted(request),
    )


def route(site: Site, path: str, handler: Handler, method: str = "GET", *, acts: bool = True) -> Route:
    """A path for people who are signed in.

    Args:
        site: The page.
        path: The path.
        handler: Answers.
        method: POST takes the page's own forms alone.
        acts: A form that changes a task, so that people who only read may not send it.
    """

    async def answer(request: Request) -> Response:
        try:
            person = await site.access.person(request)
        except Refused as error:
            return told(site, request, error, None)
        if person is None:
            return await _sign_in_first(site, request)
        call = Call(site=site, request=request, person=person)
        try:
            if call.fragment and (shown_to := request.query_params.get(AS, person.name)) != person.name:
                raise Refused(409, f"{_opened_by(call, shown_to)}: load it again")
            if method == "POST":
                _check_form(call, acts=acts)
                call.fields = await form_of(request)
                call.form = {name: values[-1] for name, values in call.fields.items()}
                if (shown_to := call.form.get(AS, person.name)) != person.name:
                    return _somebody_else(call, shown_to)
            return await handler(call)
        except (Refused, EngineError, InputRejected) as error:
            return told(site, request, error, person)

    return Route(path, answer, methods=[method])


def told(site: Site, request: Request, error: Refused | EngineError | InputRejected, person: Person | None) -> Response:
    """An error as a page of one sentence."""
    title = ""
    if isinstance(error, Refused):
        status, message, title = error.status, error.message, error.title
    else:
        status = next((number for kind, number in STATUS.items() if isinstance(error, kind)), 500)
        message = str(error)
    # A form that was refused leads back to its task.
    task_id = None if person is None or isinstance(error, TaskNotFound) else request.path_params.get("task_id")
    shown = {"status_code": status, "title": title, "message": message, "task_id": task_id, "said": ""}
    return page(site, request, "error.html", person, status=status, **shown)


async def _sign_in_first(site: Site, request: Request) -> Response:
    if request.method == "GET" and "hx-request" not in request.headers and _takes_html(request):
        there = request.url.path.removeprefix(root(request))
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(url(request, "/signin", to=f"{there}{query}"), 303)
    if request.method == "POST" and not site.access.forged(request):
        message = "you are not signed in any more, so nothing happened: sign in in another tab, then send it again here"
        with suppress(Refused):  # what is no form cannot be sent again
            return again_later(site, request, await form_of(request), None, 401, message)
    return told(site, request, Refused(401, "sign in first: your session is over, or there is none"), None)


def again_later(
    site: Site,
    request: Request,
    form: Mapping[str, Sequence[str]],
    person: Person | None,
    status: int,
    message: str,
    title: str = "",
) -> Response:
    """A page that keeps a form which nobody takes now, and sends it again."""
    sent = [(name, value) for name, values in form.items() for value in values]
    path = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    shown = {"path": path, "message": message, "title": title, "sent": sent, "written": written(form), "said": ""}
    return page(site, request, "later.html", person, status=status, **shown)


TYPED = ("text", "comment", "outcome", "reason", "note", "f:")
"""How the names begin of the fields into which people type."""


def written(form: Mapping[str, Sequence[str]]) -> list[str]:
    """What a person typed, of all that a form has sent."""
    return [value for name, values in form.items() for value in values if value and name.startswith(TYPED)]


def _opened_by(call: Call, shown_to: str) -> str:
    return f"this page was opened by {shown_to}, and you are {call.person.name} now"


def _somebody_else(call: Call, shown_to: str) -> Response:
    message = f"{_opened_by(call, shown_to)}, so nothing happened; to send it as {call.person.name}, send it again"
    form = {**call.fields, AS: [call.person.name]}
    return again_later(call.site, call.request, form, call.person, 409, message, "Who are you?")


def _check_form(call: Call, *, acts: bool) -> None:
    if call.site.access.forged(call.request):
        raise Refused(403, "this form was sent from a page of another site, so nothing happened")
    if acts and not call.person.acts:
        raise Refused(403, f"{call.person.name} may read here and change nothing, so nothing happened")


async def form_of(request: Request) -> dict[str, list[str]]:
    """The fields of a form, each with its values.

    Raises:
        Refused: It is too large, comes too slowly, or is no form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Refused(415, "send the form as application/x-www-form-urlencoded")
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES:
                    raise Refused(413, f"a form takes at most {BODY_BYTES // 1024 // 1024} MB; nothing happened")
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except (UnicodeDecodeError, ValueError):
        why = f"the form is not UTF-8, or has more than {MOST_FIELDS:,} fields, so nothing happened"
        raise Refused(400, f"{why}; choose fewer tasks at a time") from None
    except ClientDisconnect:
        raise Refused(400, "the form broke off, so nothing happened") from None
    except TimeoutError:
        raise Refused(408, f"the form took longer than {FORM_S:g} seconds to arrive, so nothing happened") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value.replace("\r\n", "\n"))  # as it was typed; browsers send CRLF
    return fields


def _takes_html(request: Request) -> bool:
    accept = request.headers.get("accept", "*/*")
    return any(kind in accept for kind in ("text/html", "text/*", "*/*", "application/xhtml+xml"))


def check_accept(request: Request) -> None:
    """Refuse a request for something that is no page.

    Raises:
        Refused: It takes no HTML.
    """
    if not _takes_html(request):
        raise Refused(406, "this address has a page in HTML; the raw data of a task is under /raw/TASK")


def json_response(value: JsonValue | bytes | str) -> Response:
    """JSON, which a browser shows as text."""
    body = value if isinstance(value, bytes | str) else json.dumps(value, ensure_ascii=False, indent=2)
    return Response(body, media_type="application/json")
