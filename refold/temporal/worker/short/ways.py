"""Which effects may take the short way, and which do: all of a worker's, those of a skill, or those of a tool.

A run keeps to what it began with, on whichever worker it goes on: a patch in its history says so, `refold.short` for
all of its effects and `refold.short:NAME` for those of a tool, written when the first such effect is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from temporalio import workflow

from refold.core.authoring.skill import Skill
from refold.core.authoring.tool import tool_spec
from refold.core.commands import CallChat, CallLlm, CallTool, Effect
from refold.core.errors import DefinitionError
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Perform, Want

PATCH = "refold.short"
DURABILITY = "ledger"
"""The durability for the short way: effects are as durable as the ledger."""

ENV = "REFOLD_DURABILITY"
KNOWN = ("history", DURABILITY)

Place: TypeAlias = tuple[str, str]

_SHORT: set[Place] = set()
_TOOLS: dict[Place, frozenset[str]] = {}


def durability_of(given: str | None) -> str:
    """The durability that a worker gives the effects of all its skills.

    Args:
        given: `history` or `ledger`; None takes `REFOLD_DURABILITY`, else `history`.

    Raises:
        DefinitionError: It is neither.
    """
    named = given or os.environ.get(ENV, "").strip() or KNOWN[0]
    if named not in KNOWN:
        place = "durability" if given else ENV
        raise DefinitionError(place, [f"{named!r} is neither {' nor '.join(map(repr, KNOWN))}"], what="setting")
    return named


def in_ledger(tools: Iterable[Callable[..., Any]]) -> list[str]:
    """The names of the tools that are declared with `durability="ledger"`."""
    specs = [tool_spec(tool) for tool in tools]
    return [spec.name for spec in specs if spec is not None and spec.durability == DURABILITY]


def say(namespace: str, task_queue: str, *, short: bool, tools: Iterable[str] = ()) -> None:
    """Set which effects take the short way on this process's worker of a task queue: all (`short`), or some tools'."""
    (_SHORT.add if short else _SHORT.discard)((namespace, task_queue))
    _TOOLS[namespace, task_queue] = frozenset(tools)


class Ways:
    """Which effects of one run take the short way. Asked from workflow code, whenever one of them is wanted."""

    def __init__(self, skill: Skill) -> None:
        self._skill = skill
        self._known: dict[str, bool] = {}

    def takes(self, command: Effect) -> bool:
        """Whether an effect that `may` take the short way does."""
        info = workflow.info()
        here = (info.namespace, info.task_queue)
        if self._says("", self._skill.options.durability == DURABILITY or here in _SHORT):
            return True
        return isinstance(command, CallTool) and self._says(f":{command.name}", command.name in _TOOLS.get(here, ()))

    def _says(self, of: str, said: bool) -> bool:
        if of not in self._known:
            # Where nothing is said here, a run that is rebuilt may have begun on a worker that said otherwise.
            self._known[of] = (said or workflow.unsafe.is_replaying()) and workflow.patched(PATCH + of)
        return self._known[of]


def may(want: Want, task: Snapshot) -> bool:
    """Whether an effect may be performed within a workflow task.

    Not one of a task that streams, whose text and reports ride on heartbeats; nor one that is tried again, was decided
    on, compensates, or belongs to another task queue or an MCP server.
    """
    if not isinstance(want, Perform) or task.stream:
        return False
    if want.attempt > 1 or want.given is not None or want.decided:
        return False
    pending = task.pending.get(want.invocation_id)
    if pending is None or pending.blocked:
        return False
    match want.command:
        case CallLlm() | CallChat():
            return want.command.queue is None
        case CallTool():
            command = want.command
            return command.queue is None and command.undoes is None and "." not in command.name
        case _:
            return False
