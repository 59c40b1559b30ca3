"""Signing in and out: a key or token becomes a session; on loopback, a name does."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from refold.web.hosts import on_loopback
from refold.web.page.frame import Refused, Site, cookie_path, form_of, go, page, set_cookie, told, url
from refold.web.page.people import COOKIE, NAME_CHARS, SESSION_S, as_name

PROBLEMS = {
    "key": "nobody has this key or token",
    "name": f"a name has 1 to {NAME_CHARS} characters that can be printed",
    "none": "give your key or token",
}
"""Why somebody was not let in, by a word in the address."""


def door_routes(site: Site) -> list[BaseRoute]:
    """The addresses that need no session."""

    async def door(request: Request) -> Response:
        access, asked = site.access, request.query_params
        return page(
            site,
            request,
            "signin.html",
            None,
            to=_inside(asked.get("to", "/")),
            by_key=access.check is not None,
            by_name=access.loopback if on_loopback(request.scope, request.headers) else None,
            problem=PROBLEMS.get(asked.get("problem", ""), ""),
        )

    async def enter(request: Request) -> Response:
        try:
            return await _enter(site, request)
        except Refused as error:
            return told(site, request, error, None)

    async def leave(request: Request) -> Response:
        if site.access.forged(request):
            return told(site, request, Refused(403, "this form was sent from a page of another site"), None)
        response = go(site, request, url(request, "/signin"), "You are signed out.")
        response.delete_cookie(COOKIE, path=cookie_path(request))
        return response

    return [
        Route("/signin", door),
        Route("/signin", enter, methods=["POST"]),
        Route("/signout", leave, methods=["POST"]),
    ]


async def _enter(site: Site, request: Request) -> Response:
    if site.access.forged(request):
        raise Refused(403, "this form was sent from a page of another site, so nothing happened")
    form = {name: values[-1] for name, values in (await form_of(request)).items()}
    access, to = site.access, form.get("to", "/")

    def again(problem: str) -> Response:
        # To an address, so that going back or reloading sends no key a second time.
        return go(site, request, url(request, "/signin", to=_inside(to), problem=problem))

    if key := form.get("key", "").strip():
        name = None if access.check is None else await access.check(key)
        if name is None:
            return again("key")
        session = {"name": name, "proven": True}
    elif access.loopback is not None and on_loopback(request.scope, request.headers):
        name = as_name(form.get("name", ""))
        if not name:
            return again("name")
        session = {"name": name, "proven": False}
    else:
        return again("none")
    response = go(site, request, url(request, _inside(to)))
    set_cookie(site, request, response, COOKIE, access.signed(session, "session"), SESSION_S)
    return response


def _inside(path: str) -> str:
    """A path of this page; the first page for anything that leads elsewhere."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if plain else "/"
