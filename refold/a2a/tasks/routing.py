"""Which skill takes a first message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol
from uuid import uuid4

import structlog
from a2a.types import Message as A2AMessage
from a2a.types import Role, SendMessageRequest
from a2a.utils.errors import InvalidParamsError

from refold.a2a.convert import data_of, parts_of
from refold.a2a.tasks.reading import Reader
from refold.core.authoring.skill import Skill
from refold.core.content import Content
from refold.core.lifecycle import Status
from refold.engine import Engine

log = structlog.get_logger("refold.a2a")

SKILL = "skill"
"""The key of a request's or message's metadata that names the skill."""


ROUTER = "(router)"
"""Whose the router's tasks are: no caller has a name like this."""


class Router(Protocol):
    """Chooses a skill where neither the caller nor the interface names one."""

    async def choose(self, content: Content, context: str) -> str | A2AMessage:
        """The id of a skill; or a message that asks back, or declines.

        Args:
            content: What the caller says.
            context: The conversation that it says it in.
        """
        ...


class SkillRouter:
    """A skill that chooses: it completes with data `{"skill": ID}`, or says what the caller is to hear instead.

    So a model is asked by a worker, under the worker's settings and with its retries, as for any other skill.
    """

    def __init__(self, engine: Engine, reader: Reader, skill: str) -> None:
        self.engine = engine
        self.reader = reader
        self.skill = skill

    async def choose(self, content: Content, context: str) -> str | A2AMessage:
        """See `Router.choose`.

        Raises:
            InvalidParamsError: The router cannot tell, and has nothing to say.
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
        """The skill; or what the router says instead, which makes no task.

        Args:
            request: The message and what is said beside it.
            content: What the message holds.
            caller: Who calls; None where nobody is known.
            tenant: The interface's; empty where it has none.
            context: The conversation.

        Raises:
            InvalidParamsError: No such skill is served, or several are and nothing says which one is meant.
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
