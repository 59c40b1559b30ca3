"""REST's routes, as the SDK makes them, for ids with slashes: a part's id begins with its task's, `pay-1/1.2`, and a
webhook's id is what its caller likes, such as an address."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from a2a.compat.v0_3.rest_adapter import REST03Adapter
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes import ServerCallContextBuilder, create_rest_routes
from a2a.types import DeleteTaskPushNotificationConfigRequest
from a2a.utils.constants import PROTOCOL_VERSION_0_3
from a2a.utils.version_validator import validate_version
from starlette.requests import Request
from starlette.routing import BaseRoute, Mount, Route

from refold.a2a.calls import SKILL_PATH

_ID = re.compile(r"\{(id|push_id)\}")
_WHOLE_ID = "{id:path}"


def rest_routes(handler: RequestHandler, contexts: ServerCallContextBuilder, *, serves_0_3: bool) -> list[BaseRoute]:
    """The routes; the last one matches every first path segment as a tenant.

    Those of 0.3 are also under the path of each skill, as the SDK has those of 1.0 below a first path segment.
    """
    old = _Rest03(handler, contexts).routes().items() if serves_0_3 else ()
    return _with_whole_ids(
        [
            *(
                Route(f"{under}{path}", serve, methods=[method])
                for under in ("", SKILL_PATH.rstrip("/"))
                for (path, method), serve in old
            ),
            *create_rest_routes(handler, contexts),
        ]
    )


class _Rest03(REST03Adapter):
    """The SDK's methods of 0.3 over REST, and the one that deletes a webhook, which it leaves out.

    Source: A2A specification 0.3, a2a.proto, DeleteTaskPushNotificationConfig.
    """

    def __init__(self, handler: RequestHandler, contexts: ServerCallContextBuilder) -> None:
        super().__init__(handler, contexts)
        self._methods = handler

    def routes(self) -> dict[tuple[str, str], Callable[[Request], Any]]:
        delete = partial(self._handle_request, self._delete_webhook)
        return {**super().routes(), ("/v1/tasks/{id}/pushNotificationConfigs/{push_id}", "DELETE"): delete}

    @validate_version(PROTOCOL_VERSION_0_3)
    async def _delete_webhook(self, request: Request, context: ServerCallContext) -> dict[str, Any]:
        named = DeleteTaskPushNotificationConfigRequest(
            task_id=request.path_params["id"], id=request.path_params["push_id"]
        )
        await self._methods.on_delete_task_push_notification_config(named, context)
        return {}


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
