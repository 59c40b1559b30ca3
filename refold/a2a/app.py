"""The gateway as an ASGI application: A2A's routes over a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from a2a.server.routes import create_jsonrpc_routes
from a2a.utils.errors import TaskNotFoundError
from opentelemetry.trace import Tracer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from refold.a2a.calls import SKILL_PATH, Calls
from refold.a2a.card.card import cards_for
from refold.a2a.card.route import card_routes
from refold.a2a.extensions import Activated, Timeline
from refold.a2a.handler import Gateway, Parts
from refold.a2a.media import WholeBodies, told_as_json
from refold.a2a.old_calls import checked
from refold.a2a.rest import rest_routes
from refold.a2a.security import Security, guards, known_caller
from refold.a2a.security.admission import Admission
from refold.a2a.security.guard import PUBLIC
from refold.a2a.security.security_schemes import declare
from refold.a2a.settings import Settings
from refold.a2a.streams.follow import Streams
from refold.a2a.streams.sse import EventStreams, OpenStreams, with_heartbeats
from refold.a2a.tasks.listing import Listing
from refold.a2a.tasks.push import NoPush, Push
from refold.a2a.tasks.reading import Reader
from refold.a2a.tasks.routing import Router, Routing, SkillRouter
from refold.a2a.tasks.sending import Sender
from refold.callbacks.address import CallbackSettings
from refold.callbacks.address import settings as callback_settings
from refold.core.authoring.define import listed, skill_of
from refold.core.authoring.skill import Skill, skill_id
from refold.engine import Engine
from refold.engine.arguments import defining, takes
from refold.web.approvals import SAY_WHO, approval_app
from refold.web.callbacks import callback_routes, utc_now
from refold.web.traced import TracedRequests

NAMELESS = (
    "nobody has a name here: whoever runs this agent can set REFOLD_A2A_API_KEYS or REFOLD_A2A_JWT_…, so that callers "
    "say who decides"
)


@takes(defining("a2a_app", "application"))
def a2a_app(
    engine: Engine,
    skills: Iterable[Any],
    settings: Settings | None = None,
    *,
    push: Push | None = None,
    router: str | Router | None = None,
    security: Security | None = None,
    tracer: Tracer | None = None,
    callbacks: CallbackSettings | None = None,
    now: Callable[[], datetime] = utc_now,
) -> Starlette:
    """The gateway as an ASGI application: JSON-RPC at `/`, REST beside it, the card under `/.well-known`.

    `app.state.open_streams` has its event streams: `end()` ends them, so that their clients reconnect to another
    gateway. uvicorn does so on SIGTERM.

    Args:
        engine: Runs the tasks.
        skills: The offered skills: skill classes, tables, compiled skills; one or more.
        settings: None takes the defaults.
        push: Delivers webhooks; None offers none.
        router: Chooses the skill for a message that names none: a skill's id, or a `Router`.
        security: Who may call; None allows callers on this machine. `security_from_env()` reads it from the
            environment.
        tracer: OpenTelemetry's, for a span of each request; None makes none.
        callbacks: The keys of callbacks' addresses; None takes them from the environment.
        now: The time by which callbacks' addresses expire; a `FakeEngine` has its own: `lambda: engine.clock.now`.

    Raises:
        ValueError: No skill is given, one is named as a path of the gateway is, or a setting does not fit the skills.
        DefinitionError: An argument is not what it should be, or the environment's settings of callbacks cannot be.
    """
    settings, security = settings or Settings(), security or Security()
    compiled = {skill_id(skill): skill for skill in map(skill_of, listed(skills))}
    if not compiled:
        raise ValueError("a gateway needs one skill or more")
    parts = _parts(engine, compiled, settings, push or NoPush(), router, security)
    handler = Gateway(engine, parts)
    open_streams, admission = OpenStreams(), Admission(security)
    declared = [one.uri for one in settings.declared_extensions]
    app = Starlette(
        exception_handlers={404: told_as_json, 405: told_as_json},
        middleware=[
            *([] if tracer is None else [Middleware(TracedRequests, tracer=tracer)]),
            *guards(security, engine.ping, url=settings.url, admission=admission, public=PUBLIC),
            Middleware(WholeBodies),
            *([Middleware(Activated, declared=declared)] if declared else []),
            Middleware(EventStreams, open_streams=open_streams),
        ],
        routes=[
            *card_routes(
                parts.cards.public, parts.cards.of_skills, settings.signing_keys, serves_0_3=settings.serves_0_3
            ),
            *approval_app(
                engine,
                known_caller,
                may_vouch=security.may_vouch,
                may_see=partial(_may_see, parts.reader, security),
                unknown=SAY_WHO if security.knows_names else NAMELESS,
            ).routes,
            *callback_routes(engine, callbacks or callback_settings(), now),
            # REST last: it ends with a mount that matches every first path segment.
            *with_heartbeats(
                checked(
                    [
                        *create_jsonrpc_routes(handler, "/", Calls(), enable_v0_3_compat=settings.serves_0_3),
                        *create_jsonrpc_routes(handler, SKILL_PATH, Calls(), enable_v0_3_compat=settings.serves_0_3),
                        *rest_routes(handler, Calls(), serves_0_3=settings.serves_0_3),
                    ],
                    serves_0_3=settings.serves_0_3,
                ),
                settings.heartbeat_s,
            ),
        ],
    )
    _check_paths(compiled, app.routes)
    app.router.redirect_slashes = False  # every first path segment might be a tenant
    app.state.open_streams, app.state.declared = open_streams, declared
    app.state.handler, app.state.admission, app.state.tracer = handler, admission, tracer
    return app


def _check_paths(skills: Iterable[str], routes: Iterable[BaseRoute]) -> None:
    own = [route.path for route in routes if isinstance(route, Route) and "/.well-known/" not in route.path]
    if taken := {path.split("/")[1] for path in own}.intersection(skills):
        ids = ", ".join(sorted(taken))
        raise ValueError(
            f"the gateway has paths of its own at {ids}, where a skill's calls would be: give it another id"
        )


def _parts(
    engine: Engine,
    skills: Mapping[str, Skill],
    settings: Settings,
    push: Push,
    router: str | Router | None,
    security: Security,
) -> Parts:
    reader = Reader(engine)
    if isinstance(router, str):
        router = SkillRouter(engine, reader, router)
    return Parts(
        reader=reader,
        sender=Sender(
            engine,
            reader,
            Routing(skills, router, private=settings.private),
            push,
            may_vouch=security.may_vouch,
            most_parts=security.parts,
            early=settings.early,
        ),
        streams=Streams(engine),
        push=push,
        listing=Listing(engine),
        cards=cards_for(
            [skill.options.card for skill in skills.values()],
            settings,
            webhooks=push.supported,
            declare=partial(declare, security=security),
        ),
        timeline=Timeline(engine, settings.timeline),
        direct=settings.direct,
    )


async def _may_see(reader: Reader, security: Security, caller: str, task_id: str) -> bool:
    """Whether a caller may see a task: its own, one that waits for its decision, or any if it may vouch for others."""
    if caller in security.may_vouch:
        return True
    try:
        await reader.record(task_id, caller)
    except TaskNotFoundError:
        return False
    return True
