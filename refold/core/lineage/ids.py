"""The commands that a task takes over from another task, in recovery and forks: their ids, and what failed of them.

A command's id is `TASK/ENTRY.N`: the task that sends the command, the entry in which the skill asked for it, and its
number among that entry's commands. A command that a new task sends as another attempt of the same work keeps its id. A
command whose work begins anew gets the id of the new task, so that no two tasks share an id for different work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import JsonValue

from refold.core.events import CommandFailed, Event
from refold.core.fold.snapshot import Pending


def own_id(task_id: str, id: str) -> str:
    """The id of a command whose work begins anew in a task: `T2/1.1` for `T/1.1`."""
    return f"{task_id}/{place(id)}"


def place(id: str) -> str:
    """The entry that asked for a command, and its number there: the same in all tasks of a lineage."""
    return id.rpartition("/")[2]


def anew(pending: Pending, id: str) -> Pending:
    """A pending command as a new task sends it: under this id, with attempts counted from the start."""
    kept = {"background": pending.background, "given": pending.given, "parked": pending.parked}
    return Pending(invocation_id=id, command=pending.command, **kept)


def without_open_failures(held: Sequence[Event], pending: Collection[str]) -> tuple[Event, ...]:
    """Held events without the failures of pending commands, which a new task sends again.

    The timeout of a question stays: the question is closed, and nothing else brings its outcome.
    """
    return tuple(one for one in held if not (isinstance(one, CommandFailed) and one.invocation_id in pending))


def renamed(state: JsonValue, ids: Mapping[str, str]) -> JsonValue:
    """A skill's state with the ids of awaited commands replaced by new ones.

    A text is replaced if it is exactly an id. Ids contain the task's id and a number, so other texts do not match.
    """
    if not ids:
        return state
    match state:
        case str():
            return ids.get(state, state)
        case list():
            return [renamed(one, ids) for one in state]
        case dict():
            return {ids.get(name, name): renamed(one, ids) for name, one in state.items()}
        case _:
            return state
