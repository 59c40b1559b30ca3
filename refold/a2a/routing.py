"""Which skill takes a first message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from a2a.types import Message as A2AMessage
from a2a.types import SendMessageRequest
from a2a.utils.errors import InvalidParamsError

from refold.a2a.convert import data_of
from refold.core.skill import Skill

SKILL = "skill"
"""The key of a request's or message's metadata that names the skill."""


class Router(Protocol):
    """Chooses a skill where neither the caller nor the interface names one."""

    async def choose(self, message: A2AMessage) -> str | A2AMessage:
        """The id of a skill; or a message that asks back, or declines."""
        ...


class Routing:
    """Chooses the skill of a new task: the one named, else the interface's, else the only one, else the router's."""

    def __init__(self, skills: Mapping[str, Skill], router: Router | None = None) -> None:
        self.skills = skills
        self.router = router

    async def choose(self, request: SendMessageRequest) -> Skill | A2AMessage:
        """The skill; or what the router says instead, which makes no task.

        Raises:
            InvalidParamsError: No such skill is served, or several are and nothing says which one is meant.
        """
        named = _named(request) or request.tenant
        if named:
            return self._skill(named)
        if len(self.skills) == 1:
            return next(iter(self.skills.values()))
        if self.router is not None:
            chosen = await self.router.choose(request.message)
            return chosen if isinstance(chosen, A2AMessage) else self._skill(chosen)
        raise InvalidParamsError(
            f"say which skill is meant, in the request's metadata as {SKILL!r}: {', '.join(self.skills)}"
        )

    def _skill(self, id: str) -> Skill:
        if id not in self.skills:
            raise InvalidParamsError(f"no skill {id!r}; served here: {', '.join(self.skills)}")
        return self.skills[id]


def _named(request: SendMessageRequest) -> str | None:
    for metadata in (request.metadata, request.message.metadata):
        said = data_of(metadata, "metadata")
        if isinstance(said, dict) and SKILL in said:
            named = said[SKILL]
            if not isinstance(named, str):
                raise InvalidParamsError(f"metadata.{SKILL} names a skill by its id; got {named!r}")
            return named
    return None
