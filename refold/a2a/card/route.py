"""The route of the agent card: the SDK's, with `ETag` and `Last-Modified`."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

from a2a.server.routes import create_agent_card_routes
from a2a.types import AgentCard
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MAX_AGE_S = 300
"""Seconds for which a client may use a card without asking again; after that the ETag says whether it has changed."""


def card_route(card: AgentCard) -> Route:
    """Serves a card that does not change while the process runs, with `ETag` and `Last-Modified`."""
    (inner,) = create_agent_card_routes(card, cache_control=f"public, max-age={MAX_AGE_S}")
    since = format_datetime(datetime.now(UTC), usegmt=True)

    async def serve(request: Request) -> Response:
        response: Response = await inner.endpoint(request)
        response.headers["Last-Modified"] = since
        return response

    return Route(inner.path, serve, methods=["GET"])
