"""The routes of the agent cards and of the keys that sign them, with `ETag` and `Last-Modified`.

A client that says `A2A-Version: 1.0` gets a card of that version alone. Any other also gets the fields of 0.3, which a
strict parser of 1.0 may refuse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, VERSION_HEADER
from google.protobuf.json_format import MessageToDict
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from refold.a2a.calls import major_version
from refold.a2a.card.signing import KEYS_PATH, SigningKey, key_set

MAX_AGE_S = 300
"""Seconds for which a client may use a card without asking again; after that the ETag says whether it has changed."""


def card_routes(
    public: AgentCard, of_skills: Mapping[str, AgentCard], keys: Sequence[SigningKey], *, serves_0_3: bool
) -> list[Route]:
    """The routes of the agent's card, of each skill's, and of the public keys.

    The documents do not change while the process runs.

    Args:
        public: The agent's card.
        of_skills: The cards of skills, by the skill's id.
        keys: They sign the cards.
        serves_0_3: Whether clients of 0.3 are served.
    """
    routes = [
        _route(f"{path}{AGENT_CARD_WELL_KNOWN_PATH}", MessageToDict(card), agent_card_to_dict(card), old=serves_0_3)
        for path, card in [("", public), *((f"/{id}", card) for id, card in of_skills.items())]
    ]
    if keys:
        routes.append(_route(KEYS_PATH, key_set(keys), {}, old=False))
    return routes


def _route(path: str, now: Mapping[str, Any], before: Mapping[str, Any], *, old: bool) -> Route:
    since = format_datetime(datetime.now(UTC), usegmt=True)
    new_body, old_body = to_json(now), to_json(before)

    async def serve(request: Request) -> Response:
        version = request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER) or ""
        body = old_body if old and major_version(version) != "1" else new_body
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        headers = {
            "ETag": tag,
            "Last-Modified": since,
            "Cache-Control": f"public, max-age={MAX_AGE_S}",
            "Vary": VERSION_HEADER,
        }
        known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
        if known & {tag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    return Route(path, serve, methods=["GET"])
