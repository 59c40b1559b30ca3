"""Chooses the skill for a first message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from a2a.types import Message as A2AMessage
from a2a.types import Role, SendMessageRequest
from a2a.utils.errors import InternalError, InvalidParamsError
from pydantic import JsonValue

from refold.a2a.convert import parts_of
from refold.a2a.data import data_of
from refold.a2a.security.principal import ROUTER
from refold.a2a.tasks import idempotency
from refold.a2a.tasks.reading import Reader
from refold.core.authoring.skill import Skill
from refold.core.content import Content
from refold.core.lifecycle import Status
from refold.engine import Engine, TaskExists
from refold.seen.logs import logger

log = logger("refold.a2a")

SKILL = "skill"
"""The key in a request's or message's metadata that names the skill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMessage:
    """A message that names no skill.

    Attributes:
        content: What the caller says.
        context: The conversation; a new one if the caller named none.
        message_id: The caller's id of the message.
        metadata: The message's metadata and the request's, which goes before.
        caller: The authenticated caller; None for an anonymous one.
        references: Ids of tasks to which the caller refers.
        extensions: The extensions that the caller asks for.
        key: The `Idempotency-Key` of the call; None without one. With the same key, the same caller's message must be
            given to the same skill, since a skill's tasks are known by skill and key.
    """

    content: Content
    context: str
    message_id: str = ""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    caller: str | None = None
    references: tuple[str, ...] = ()
    extensions: frozenset[str] = frozenset()
    key: str | None = None


class Router(Protocol):
    """Chooses a skill if neither the caller nor the interface names one."""

    async def choose(self, message: FirstMessage) -> str | A2AMessage:
        """The id of a skill; or a message for the caller, which asks back or declines."""
        ...


class SkillRouter:
    """A skill as router: it completes with the data `{"skill": ID}`, or with a message for the caller.

    So a worker makes the model call, with the worker's settings and retries, as for any other skill.
    """

    def __init__(self, engine: Engine, reader: Reader, skill: str) -> None:
        self.engine = engine
        self.reader = reader
        self.skill = skill

    async def choose(self, message: FirstMessage) -> str | A2AMessage:
        """See `Router.choose`. The skill gets the content alone. With a used key, what it said then is said again.

        Raises:
            InvalidParamsError: The router completed with neither; or the key was used for another message.
            InternalError: The router failed, or was canceled.
        """
        caller = message.caller
        delivery = None if message.key is None else idempotency.delivery_of(caller, self.skill, message.key)
        task_id = f"{self.skill}-{delivery or uuid4().hex}"
        try:
            await self.engine.start(
                self.skill,
                message.content,
                task_id=task_id,
                owner=ROUTER if caller is None else f"{ROUTER} {caller}",
                context=message.context,
                message_id=message.message_id or None,
                delivery_id=delivery,
            )
        except TaskExists:
            if delivery is None:
                raise
        record = await self.reader.settled(await self.engine.record(task_id))
        idempotency.taken(record, delivery, message.content)
        said = next((one for one in reversed(record.messages) if one.role == "agent"), None)
        if said is None or record.status is not Status.COMPLETED:
            if record.status in (Status.FAILED, Status.CANCELED):
                log.error("router_failed", task_id=task_id, status=record.status.value, why=record.reason)
                again = "send the message again" if delivery is None else "send the message with a new Idempotency-Key"
                raise InternalError(
                    f"the router of this agent has failed; {again}, or name the skill in the metadata as {SKILL!r}"
                )
            log.error("router_cannot_tell", task_id=task_id, status=record.status.value, why=record.reason)
            raise InvalidParamsError(f"nothing tells which skill is meant; name it in the metadata as {SKILL!r}")
        data = said.content.data
        if isinstance(data, dict) and isinstance(chosen := data.get(SKILL), str):
            return chosen
        reply = parts_of(said.content.parts)
        return A2AMessage(message_id=uuid4().hex, context_id=message.context, role=Role.ROLE_AGENT, parts=reply)


class Routing:
    """Chooses the skill of a new task: the one named, else the interface's, else the only one, else the router's."""

    def __init__(
        self, skills: Mapping[str, Skill], router: Router | None = None, *, private: Collection[str] = ()
    ) -> None:
        self.skills = skills
        self.router = router
        self.private = private

    async def choose(self, request: SendMessageRequest, message: FirstMessage, *, tenant: str) -> Skill | A2AMessage:
        """The skill; or the router's message, in which case no task is started.

        Args:
            request: Names the skill, if the caller does.
            message: For the router.
            tenant: The interface's; empty if it has none.

        Raises:
            InvalidParamsError: No such skill is served, or several are and none is named.
        """
        named = _named(message) or request.tenant or tenant
        known = message.caller is not None
        served = {id: skill for id, skill in self.skills.items() if known or id not in self.private}
        if not named and len(served) == 1:
            return next(iter(served.values()))
        if not named and self.router is not None:
            chosen = await self.router.choose(message)
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


def metadata_in(request: SendMessageRequest) -> dict[str, JsonValue]:
    """The metadata of a message and of its request; what the request says goes before.

    Raises:
        InvalidParamsError: A number in it is infinite or NaN.
    """
    found: dict[str, JsonValue] = {}
    for metadata in (request.message.metadata, request.metadata):
        said = data_of(metadata, "metadata")
        found |= said if isinstance(said, dict) else {}
    return found


def _named(message: FirstMessage) -> str | None:
    named = message.metadata.get(SKILL)
    if named is not None and not isinstance(named, str):
        raise InvalidParamsError(f"metadata.{SKILL} names a skill by its id; got {named!r}")
    return named
