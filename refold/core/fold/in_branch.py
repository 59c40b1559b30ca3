"""What becomes of a branch's commands: nothing in a dry one; in a live one, effects told from the other task's."""

from __future__ import annotations

from pydantic_core import to_json

from refold.core.commands import CallTool, Effect
from refold.core.events import CommandFailed
from refold.core.fold.snapshot import Fork
from refold.core.retry import Failure, FailureKind

DRY_RUN = "DryRun"
"""The `type` of the failure that each effect of a dry branch comes to."""

SHOWN_CHARS = 300


def dry_run(invocation_id: str, command: Effect) -> CommandFailed:
    """What a command comes to in a dry branch."""
    asked = command.model_dump(mode="json", exclude={"kind", "id", "retry", "undo"})
    shown = to_json(asked).decode()
    shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[: SHOWN_CHARS - 1]}…"
    message = f"dry run: {command.kind} {command.subject!r} was not performed; asked for: {shown}"
    failure = Failure(kind=FailureKind.PERMANENT, type=DRY_RUN, message=message)
    return CommandFailed(id=command.id, invocation_id=invocation_id, failure=failure)


def scoped(fork: Fork, command: Effect) -> Effect:
    """A command as a live branch sends it out: its business key is none of the other task's."""
    if not isinstance(command, CallTool):
        return command
    undoes = command.undoes
    if undoes is not None and undoes.key is not None:
        undoes = undoes.model_copy(update={"key": f"{undoes.key}@{fork.scope}"})
    key = None if command.key is None else f"{command.key}@{fork.scope}"
    return command.model_copy(update={"key": key, "undoes": undoes})
