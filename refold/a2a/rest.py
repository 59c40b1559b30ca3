"""REST's routes, as the SDK makes them, for ids with slashes: a part's id begins with its task's, `pay-1/1.2`, and a
webhook's id is what its caller likes, such as an address."""

from __future__ import annotations

import re
from collections.abc import Iterable

from a2a.compat.v0_3.rest_adapter import REST03Adapter
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes import ServerCallContextBuilder, create_rest_routes
from starlette.routing import BaseRoute, Mount, Route

from refold.a2a.calls import SKILL_PATH

_ID = re.compile(r"\{(id|push_id)\}")
_WHOLE_ID = "{id:path}"


def rest_routes(handler: RequestHandler, contexts: ServerCallContextBuilder, *, serves_0_3: bool) -> list[BaseRoute]:
    """The routes; the last one matches every first path segment as a tenant.

    Below a first path segment the SDK has those of 1.0 alone; those of 0.3 are added under the path of each skill.
    """
    of_skills = REST03Adapter(handler, contexts).routes().items() if serves_0_3 else ()
    return _with_whole_ids(
        [
            *(Route(f"{SKILL_PATH.rstrip('/')}{path}", serve, methods=[method]) for (path, method), serve in of_skills),
            *create_rest_routes(handler, contexts, enable_v0_3_compat=serves_0_3),
        ]
    )


def _with_whole_ids(routes: Iterable[BaseRoute]) -> list[BaseRoute]:
    # `/tasks/{id}` matches what has more behind the id, too, so it comes after those.
    return sorted(map(_with_whole_id, routes), key=_rank)


def _rank(route: BaseRoute) -> tuple[bool, bool]:
    return isinstance(route, Mount), isinstance(route, Route) and route.path.endswith(_WHOLE_ID)


def _with_whole_id(route: BaseRoute) -> BaseRoute:
    if isinstance(route, Mount):
        return Mount(route.path, routes=_with_whole_ids(route.routes))
    if isinstance(route, Route):
        return Route(_ID.sub(r"{\1:path}", route.path), route.endpoint, methods=list(route.methods or ()))
    return route
