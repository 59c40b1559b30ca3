"""Signing in and out: a key or token becomes a session; on loopback, a name does."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from refold.web.hosts import on_loopback
from refold.web.page.frame import Refused, Site, cookie_path, form_of, go, page, set_cookie, told, url
from refold.web.page.people import COOKIE, SESSION_S, as_name, forged


def door_routes(site: Site) -> list[BaseRoute]:
    """The addresses that need no session."""

    async def door(request: Request) -> Response:
        return _door(site, request, request.query_params.get("to", "/"))

    async def enter(request: Request) -> Response:
        try:
            return await _enter(site, request)
        except Refused as error:
            return told(site, request, error, None)

    async def leave(request: Request) -> Response:
        if forged(request):
            return told(site, request, Refused(403, "this form was sent from a page of another site"), None)
        response = go(site, request, url(request, "/signin"), "You are signed out.")
        response.delete_cookie(COOKIE, path=cookie_path(request))
        return response

    return [
        Route("/signin", door),
        Route("/signin", enter, methods=["POST"]),
        Route("/signout", leave, methods=["POST"]),
    ]


def _door(site: Site, request: Request, to: str, problem: str = "", status: int = 200) -> Response:
    access = site.access
    return page(
        site,
        request,
        "signin.html",
        None,
        status=status,
        to=_inside(to),
        by_key=access.check is not None,
        by_name=access.loopback if on_loopback(request.scope, request.headers) else None,
        problem=problem,
    )


async def _enter(site: Site, request: Request) -> Response:
    if forged(request):
        raise Refused(403, "this form was sent from a page of another site, so nothing happened")
    form = {name: values[-1] for name, values in (await form_of(request)).items()}
    access, to = site.access, form.get("to", "/")
    if key := form.get("key", "").strip():
        name = None if access.check is None else await access.check(key)
        if name is None:
            return _door(site, request, to, "nobody has this key or token", 401)
        session = {"name": name, "proven": True}
    elif access.loopback is not None and on_loopback(request.scope, request.headers):
        name = as_name(form.get("name", ""))
        if not name:
            return _door(site, request, to, "a name has 1 to 256 characters that can be printed", 409)
        session = {"name": name, "proven": False}
    else:
        return _door(site, request, to, "give your key or token", 401)
    response = go(site, request, url(request, _inside(to)))
    set_cookie(request, response, COOKIE, access.signed(session, "session"), SESSION_S)
    return response


def _inside(path: str) -> str:
    """A path of this page; the first page for anything that leads elsewhere."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if plain else "/"
