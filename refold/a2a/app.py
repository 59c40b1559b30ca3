"""The gateway as an ASGI application: A2A's routes over a handler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from starlette.applications import Starlette
from starlette.middleware import Middleware

from refold.a2a.card import agent_card
from refold.a2a.handler import Gateway, parts_for
from refold.a2a.push import Push
from refold.a2a.routing import Router
from refold.a2a.settings import Settings
from refold.a2a.sse import EventStreams, OpenStreams
from refold.core.define import skill_of
from refold.core.skill import skill_id
from refold.engine import Engine


def a2a_app(
    engine: Engine,
    skills: Iterable[Any],
    settings: Settings | None = None,
    *,
    push: Push | None = None,
    router: Router | None = None,
) -> Starlette:
    """The gateway, to be served or mounted: JSON-RPC at `/`, REST beside it, the card under `/.well-known`.

    Its event streams are in `app.state.open_streams`: `end()` ends them, so that those who read them come again to
    another gateway. uvicorn's own SIGTERM does so by itself.

    Args:
        engine: Where the tasks are.
        skills: What is offered: skill classes, tables, compiled skills; one or more.
        settings: None takes the defaults.
        push: How webhooks are delivered; None offers none.
        router: Chooses a skill where nothing else says which one is meant.

    Raises:
        ValueError: No skill is given.
    """
    settings = settings or Settings()
    compiled = {skill_id(skill): skill for skill in map(skill_of, skills)}
    if not compiled:
        raise ValueError("a gateway needs one skill or more")
    parts = parts_for(engine, compiled, push=push, router=router)
    card = agent_card([skill.options.card for skill in compiled.values()], settings)
    card.capabilities.push_notifications = parts.push.supported
    handler = Gateway(engine, parts)
    open_streams = OpenStreams()
    app = Starlette(
        middleware=[Middleware(EventStreams, open_streams=open_streams, heartbeat_s=settings.heartbeat_s)],
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
            # Last: it ends with a mount that takes every first segment for a tenant.
            *create_rest_routes(handler, enable_v0_3_compat=True),
        ],
    )
    app.state.open_streams = open_streams
    return app
