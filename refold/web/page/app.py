"""The page as an ASGI application, to be served alone or mounted under any path."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refold.core.authoring.define import listed, skill_of
from refold.core.authoring.skill import skill_id
from refold.engine import Engine
from refold.engine.arguments import defining, takes
from refold.seen.logs import logger
from refold.web.page import deciding, inbox, schedules
from refold.web.page.doors import door_routes
from refold.web.page.frame import HEADERS, Call, Handler, Refused, Schedules, Site, route, told
from refold.web.page.lists import listing, saved
from refold.web.page.lists.bulk import Bulk
from refold.web.page.lists.history import History
from refold.web.page.people import Access
from refold.web.page.skills import pages as skills
from refold.web.page.streams import Bell
from refold.web.page.task import pages as task
from refold.web.page.task import past
from refold.web.page.templates import HERE, version

log = logger("refold.page")

KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@takes(defining("Pages", "page"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What the page shows beside the tasks.

    Attributes:
        skills: The skills that people can look at and start: skill classes, tables, compiled skills.
        temporal_ui: The address of Temporal's UI for this namespace, such as
            `http://127.0.0.1:8233/namespaces/default/workflows`; None shows no link to it.
        schedules: What starts tasks by the clock, such as `TemporalEngine.schedules`; None shows none.
    """

    skills: Iterable[Any] = ()
    temporal_ui: str | None = None
    schedules: Schedules | None = None


@takes(defining("page_app", "application"))
def page_app(engine: Engine, access: Access, pages: Pages | None = None) -> Starlette:
    """The page.

    `app.state.open_streams.end()` ends its event streams, so that open pages connect to another process.

    Args:
        engine: Runs the tasks.
        access: Who may use the page; `access_from_env()` reads it from the environment.
        pages: What else it shows.
    """
    pages = pages or Pages()
    compiled = {skill_id(one): one for one in map(skill_of, listed(pages.skills))}
    site = Site(engine=engine, access=access, skills=compiled, temporal_ui=pages.temporal_ui, schedules=pages.schedules)

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        try:
            person = await access.person(request)
        except Refused:
            person = None
        said = {404: "there is no such page", 405: "this address takes no such request"}
        refused = Refused(error.status_code, said.get(error.status_code, error.detail))
        response = told(site, request, refused, person)
        response.headers.update(error.headers or {})
        return response

    async def crashed(request: Request, error: Exception) -> Response:
        number = secrets.token_hex(6)
        log.error("request_failed", reference=number, path=request.url.path, exc_info=error)
        said = f"something went wrong here; whoever runs the page finds it in the log as {number}"
        response = told(site, request, Refused(500, said), None)
        response.headers.update(HEADERS)  # this answer is made outside of the middleware
        return response

    app = Starlette(
        routes=[Route("/static/{file}", _static), *door_routes(site), *_routes(site)],
        middleware=[Middleware(Framed, access=access)],
        exception_handlers={404: wrong, 405: wrong, Exception: crashed},
    )
    app.router.redirect_slashes = False
    app.state.open_streams = site.streams
    return app


def _routes(site: Site) -> list[BaseRoute]:
    bell, history = Bell(site.engine), History(site.engine)

    async def news(call: Call) -> Response:
        since = call.number("since", 0, most=int(time()))
        return site.streams.answer(bell.news(datetime.fromtimestamp(since, UTC) if since else None))

    def rings(handler: Handler) -> Handler:
        async def answered(call: Call) -> Response:
            try:
                return await handler(call)
            finally:
                bell.ring()

        return answered

    get: Mapping[str, Handler] = {
        "/": inbox.inbox,
        "/live": news,
        "/decisions": history.decisions,
        "/tasks": listing.tasks,
        "/skills": skills.skills,
        "/skills/{skill}": skills.skill,
        "/schedules": schedules.schedules,
        "/schedules/{schedule:path}": schedules.schedule,
        "/gate/{task_id:path}": inbox.gate,
        "/show/{task_id:path}": inbox.show,
        "/task/{task_id:path}": task.task,
        "/head/{task_id:path}": task.head,
        "/waits/{task_id:path}": task.waits,
        "/story/{task_id:path}": task.story,
        "/calls/{task_id:path}": task.calls,
        "/content/{task_id:path}": task.content,
        "/artifact/{task_id:path}": task.artifact,
        "/raw/{task_id:path}": task.raw,
        "/live/{task_id:path}": task.live,
        "/ask/{task_id:path}": task.ask,
        "/at/{task_id:path}": past.at,
        "/state/{task_id:path}": past.state,
        "/explain/{task_id:path}": past.explain,
        "/beside/{task_id:path}": past.beside,
    }
    post: Mapping[str, Handler] = {
        "/decide": deciding.again(deciding.decide),
        "/decide-all": deciding.again(deciding.decide_all),
        "/answer": deciding.again(deciding.answer),
        "/resolve": deciding.again(deciding.resolve),
        "/bulk": Bulk().bulk,
        "/skills/{skill}": deciding.again(skills.start),
        "/schedules/{schedule:path}": schedules.act,
        "/act/{task_id:path}": task.act,
        "/fork/{task_id:path}": past.fork,
    }
    return [
        route(site, "/views", saved.save, "POST", acts=False),
        *(route(site, path, handler) for path, handler in get.items()),
        *(route(site, path, rings(handler), "POST") for path, handler in post.items()),
    ]


async def _static(request: Request) -> Response:
    name = str(request.path_params["file"])
    try:
        current = version(name)
    except KeyError:
        raise HTTPException(404) from None
    file = HERE / "static" / name
    # While a new release is rolled out, a page of one release may ask a server of the other for a file.
    right = request.query_params.get("v") == current
    kept = {"Cache-Control": "public, max-age=31536000, immutable"} if right else {}
    return FileResponse(file, media_type=KINDS.get(file.suffix, "text/plain"), headers=kept)


class Framed:
    """Middleware: the headers that every answer has, and the host that every request names."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in more if one[0] not in given)]
            await send(message)

        if not self.access.right_host(Request(scope).headers):
            wrong = Response("this is not the host of this page; whoever runs it adds its names to the hosts\n", 421)
            await wrong(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)
