"""Chooses the skill for a first message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol
from uuid import uuid4

import structlog
from a2a.types import Message as A2AMessage
from a2a.types import Role, SendMessageRequest
from a2a.utils.errors import InvalidParamsError

from refold.a2a.convert import parts_of
from refold.a2a.data import data_of
from refold.a2a.tasks.reading import Reader
from refold.core.authoring.skill import Skill
from refold.core.content import Content
from refold.core.lifecycle import Status
from refold.engine import Engine

log = structlog.get_logger("refold.a2a")

SKILL = "skill"
"""The key in a request's or message's metadata that names the skill."""


ROUTER = "(router)"
"""The owner of the router's tasks: no caller can have this name."""


class Router(Protocol):
    """Chooses a skill if neither the caller nor the interface names one."""

    async def choose(self, content: Content, context: str) -> str | A2AMessage:
        """The id of a skill; or a message for the caller, which asks back or declines.

        Args:
            content: The caller's message.
            context: The conversation.
        """
        ...


class SkillRouter:
    """A skill as router: it completes with the data `{"skill": ID}`, or with a message for the caller.

    So a worker makes the model call, with the worker's settings and retries, as for any other skill.
    """

    def __init__(self, engine: Engine, reader: Reader, skill: str) -> None:
        self.engine = engine
        self.reader = reader
        self.skill = skill

    async def choose(self, content: Content, context: str) -> str | A2AMessage:
        """See `Router.choose`.

        Raises:
            InvalidParamsError: The router completed with neither.
        """
        task_id = f"{self.skill}-{uuid4().hex}"
        await self.engine.start(self.skill, content, task_id=task_id, owner=ROUTER, context=context)
        record = await self.reader.settled(await self.engine.record(task_id))
        said = next((message for message in reversed(record.messages) if message.role == "agent"), None)
        if said is None or record.status is not Status.COMPLETED:
            log.error("router_cannot_tell", task_id=task_id, status=record.status.value, why=record.reason)
            raise InvalidParamsError(f"nothing tells which skill is meant; name it in the metadata as {SKILL!r}")
        data = said.content.data
        if isinstance(data, dict) and isinstance(chosen := data.get(SKILL), str):
            return chosen
        reply = parts_of(said.content.parts)
        return A2AMessage(message_id=uuid4().hex, context_id=context, role=Role.ROLE_AGENT, parts=reply)


class Routing:
    """Chooses the skill of a new task: the one named, else the interface's, else the only one, else the router's."""

    def __init__(
        self, skills: Mapping[str, Skill], router: Router | None = None, *, private: Collection[str] = ()
    ) -> None:
        self.skills = skills
        self.router = router
        self.private = private

    async def choose(
        self, request: SendMessageRequest, content: Content, caller: str | None, *, tenant: str, context: str
    ) -> Skill | A2AMessage:
        """The skill; or the router's message, in which case no task is started.

        Args:
            request: The message and its metadata.
            content: The content of the message.
            caller: None for an anonymous caller.
            tenant: The interface's; empty if it has none.
            context: The conversation.

        Raises:
            InvalidParamsError: No such skill is served, or several are and none is named.
        """
        named = _named(request) or request.tenant or tenant
        served = {id: skill for id, skill in self.skills.items() if caller is not None or id not in self.private}
        if not named and len(served) == 1:
            return next(iter(served.values()))
        if not named and self.router is not None:
            chosen = await self.router.choose(content, context)
            if isinstance(chosen, A2AMessage):
                return chosen
            named = chosen
        if not named:
            raise InvalidParamsError(
                f"say which skill is meant, in the request's metadata as {SKILL!r}: {', '.join(served)}"
            )
        if named not in served:
            raise InvalidParamsError(f"no skill {named!r}; served here: {', '.join(served)}")
        return served[named]


def _named(request: SendMessageRequest) -> str | None:
    for metadata in (request.metadata, request.message.metadata):
        said = data_of(metadata, "metadata")
        if isinstance(said, dict) and SKILL in said:
            named = said[SKILL]
            if not isinstance(named, str):
                raise InvalidParamsError(f"metadata.{SKILL} names a skill by its id; got {named!r}")
            return named
    return None
