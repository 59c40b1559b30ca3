"""A caller's identity: the name that owns its tasks."""

from __future__ import annotations

import re

from starlette.authentication import BaseUser

from refold.core.errors import shown

NAME_CHARS = 256

ROUTER = "(router)"
"""How the owner of the router's tasks begins; the caller's name follows. So each caller's messages count by themselves,
in the order of work and in the budget of a day, and no caller sees another caller's tasks."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class Principal(BaseUser):
    """A caller, authenticated or anonymous.

    Attributes:
        name: The owner of the caller's tasks; empty for an anonymous caller.
    """

    def __init__(self, name: str, *, known: bool = True) -> None:
        self.name = name
        self.known = known

    @property
    def is_authenticated(self) -> bool:
        """Whether the caller is authenticated."""
        return self.known

    @property
    def display_name(self) -> str:
        """The name."""
        return self.name

    @property
    def identity(self) -> str:
        """The name."""
        return self.name


NOBODY = Principal("", known=False)
"""Anonymous callers; they share the tasks without an owner."""


def problem_with(name: object) -> str | None:
    """Why a caller cannot have this name; None if it can."""
    if not isinstance(name, str):
        return f"it is no text, but {shown(name)}"
    if not name or name != name.strip():
        return "it is empty, or has space around it"
    if len(name) > NAME_CHARS:
        return f"it is longer than {NAME_CHARS} characters"
    if name.startswith(ROUTER):
        return f"it begins with {ROUTER!r}, as the owners of the router's tasks do"
    return "it has characters that cannot be printed" if _UNPRINTABLE.search(name) else None
