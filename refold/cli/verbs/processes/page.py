"""The page beside the gateway, in one process and on one port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from refold.a2a.security import Security
from refold.a2a.security.authentication import caller_of
from refold.a2a.security.http_errors import Refused
from refold.cli.errors import CallError
from refold.cli.person import caller
from refold.core.authoring.skill import Skill
from refold.engine import Engine
from refold.temporal import TemporalEngine
from refold.web.hosts import LOOPBACK_NAMES, is_loopback
from refold.web.page import Access, Pages, access_from_env, frame, page_app
from refold.web.page.people import Check

PATH = "/page"


@dataclass(frozen=True, slots=True)
class _Both:
    """The open streams of the gateway and of the page."""

    parts: Sequence[Any]

    def end(self) -> None:
        for part in self.parts:
            part.end()

    def cut(self) -> None:
        for part in self.parts:
            part.cut()


def with_page(
    gateway: Starlette,
    engine: Engine,
    skills: Sequence[Skill],
    access: Access,
    temporal_ui: str | None,
    url: str = "",
) -> Starlette:
    """An application that serves the page under `/page`, and the gateway everywhere else.

    Where `url`, the gateway's address for clients, has a path, a proxy has the gateway under it: the page's links begin
    with it, and lead to the page with and without that proxy.

    Raises:
        CallError: A skill has the page's path for itself.
    """
    if any(f"/{skill.options.card.id}" == PATH for skill in skills):
        raise CallError(f"a skill is called {PATH[1:]!r}, and the page is served there; give the skill another id")
    schedules = engine.schedules if isinstance(engine, TemporalEngine) else None
    page = page_app(engine, access, Pages(skills=skills, temporal_ui=temporal_ui, schedules=schedules))
    before = urlsplit(url).path

    async def to_page(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{before}{PATH}/", 307)

    async def without_proxy(scope: Scope, receive: Receive, send: Send) -> None:
        place = {name: before + scope[name] for name in ("root_path", "path")}
        await page({**scope, **place}, receive, send)

    pages = [Mount(PATH, without_proxy), *([Mount(before + PATH, page)] if before else [])]
    both = Starlette(routes=[Route(PATH, to_page), *pages, Mount("/", gateway)])
    both.state.open_streams = _Both([page.state.open_streams, gateway.state.open_streams])
    return both


def access(security: Security, host: str, url: str = "") -> Access:
    """Who may use the page: those whom the gateway knows; on loopback, if it is open there, whoever is on this machine.

    Args:
        security: The gateway's.
        host: The address that it listens on.
        url: Its address for clients: there, too, its host is an accepted name.

    Raises:
        CallError: Everybody who can reach it could act under any name.
        AccessError: A setting of the page is wrong.
    """
    check = _check(security) if security.knows_names else None
    found = access_from_env(check=check, hosts=tuple(one.lower() for one in security.hosts))
    if security.anonymous == "loopback" and found.proxy_header is None:  # a proxy is on loopback itself
        hosts = found.hosts or (*LOOPBACK_NAMES, *filter(None, [urlsplit(url).hostname]))
        found = replace(found, loopback=caller(), hosts=hosts)
    if not security.knows_names and found.proxy_header is None and not (found.loopback and is_loopback(host)):
        raise CallError(
            "people need a way to say who they are: set REFOLD_A2A_API_KEYS or REFOLD_A2A_JWT_…, or REFOLD_PAGE_PROXY_"
            "HEADER for a proxy that signs them in, or serve the page on 127.0.0.1, without --anonymous and "
            "REFOLD_A2A_ANONYMOUS"
        )
    return found


def _check(security: Security) -> Check:
    async def check(credentials: str) -> str | None:
        try:
            headers = Headers({"authorization": f"Bearer {credentials}"})
            return (await caller_of({"type": "http", "client": None}, headers, security)).name or None
        except UnicodeEncodeError:
            return None
        except Refused as error:
            if error.status == 401:
                return None
            # Whose token this is may well be known: it lacks the scope, or the issuer's keys cannot be fetched now.
            raise frame.Refused(error.status, error.message) from None

    return check
