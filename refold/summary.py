"""A task's journal in a few lines, for a model or a person that has not seen the conversation.

The same journal always makes the same text. Source: S3.67.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic_core import to_json

from refold.core.commands import AskApproval, AskUser, Command
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import ReceiptStatus
from refold.core.lifecycle import TERMINAL, TaskState
from refold.core.values import shortened
from refold.engine.arguments import Within, takes
from refold.record import receipts

RESULT_CHARS = 200
"""How much of each result is told, in characters."""


@takes()
def context_summary(
    task_id: str, entries: Iterable[Entry], *, result_chars: Annotated[int, Within(0)] = RESULT_CHARS
) -> str:
    """What a task has done, with its results; what is under way; and what it waits for.

    Args:
        task_id: The task.
        entries: Its journal, from the first entry on.
        result_chars: How much of each result is told, in characters; 0 tells none.

    Returns:
        Some lines of text, with one for each call that has an outcome. Messages are not in it, questions are.
    """
    entries = [entry for entry in entries if not entry.refused]
    issued = {one.invocation_id: one.command for entry in entries for one in entry.commands}
    closed = {gate for entry in entries for gate in entry.closed}
    known = {one.invocation_id: one for one in receipts(entries)}
    state = next((entry.moves[-1].to_state for entry in reversed(entries) if entry.moves), TaskState.PLANNED)
    lines = [f"Task {task_id} is {state}."]
    for number, one in enumerate(known.values(), start=1):
        about = _named(issued[one.invocation_id]) if one.invocation_id in issued else one.invocation_id
        result = (
            shortened(to_json(one.outcome).decode(), result_chars) if result_chars and one.outcome is not None else ""
        )
        lines.append(f"{number}. {about}: {_STATUS[one.status]}{f': {result}' if result else ''}")
    if state in TERMINAL:
        return "\n".join(lines)
    for id, command in issued.items():
        if isinstance(command, AskUser | AskApproval):
            if id not in closed:
                lines.append(f"Waits for {command.slot}: {command.message.text}")
        elif id not in known:
            lines.append(f"Under way: {_named(command)}")
    return "\n".join(lines)


_STATUS = {ReceiptStatus.OK: "done", ReceiptStatus.ERROR: "failed", ReceiptStatus.CANCELED: "canceled"}


def _named(command: Command) -> str:
    return f"{command.kind} {command.subject}"
