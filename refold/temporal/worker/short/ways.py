"""Which effects may take the short way, and which tasks do: what a worker says counts when a run begins its first one.

A run keeps to what it began with: the patch `refold.short` in its history says so, on whichever worker it goes on.
"""

from __future__ import annotations

import os
from typing import TypeAlias

from temporalio import workflow

from refold.core.authoring.skill import Skill
from refold.core.commands import CallChat, CallLlm, CallTool
from refold.core.errors import DefinitionError
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Perform, Want

PATCH = "refold.short"
DURABILITY = "ledger"
"""What skills and workers say for the short way: their effects are as durable as the ledger."""

ENV = "REFOLD_DURABILITY"
KNOWN = ("history", DURABILITY)

Place: TypeAlias = tuple[str, str]

_SHORT: set[Place] = set()


def durability_of(given: str | None) -> str:
    """What a worker says for all its skills.

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


def say(namespace: str, task_queue: str, *, short: bool) -> None:
    """Set what this process's worker of a task queue says for all its skills."""
    (_SHORT.add if short else _SHORT.discard)((namespace, task_queue))


def takes(skill: Skill) -> bool:
    """Whether the current run takes the short way. Called from workflow code, once a run.

    Where nothing is said for it, a run that is rebuilt may have begun on a worker that said otherwise.
    """
    info = workflow.info()
    said = skill.options.durability == DURABILITY or (info.namespace, info.task_queue) in _SHORT
    return (said or workflow.unsafe.is_replaying()) and workflow.patched(PATCH)


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
