"""What the commands of one task are called in a task that goes on from it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from refold.core.fold.snapshot import Pending


def anew(pending: Pending, id: str) -> Pending:
    """A command as a new task sends it out: under this id, its tries counted from the start."""
    return Pending(invocation_id=id, command=pending.command, background=pending.background, given=pending.given)


def renamed(state: JsonValue, ids: Mapping[str, str]) -> JsonValue:
    """A skill's state, where it says which commands it awaits, with their new ids.

    An id is replaced where it is the whole of a text; it holds the task's id and a number, so that nothing else is
    taken for one.
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


def next_id(id: str) -> str:
    """The id under which a command is asked for once more: `T/1.1` is the first time, `T/1.1~2` the second."""
    task, _, own = id.rpartition("/")
    first, _, times = own.partition("~")
    return f"{task}/{first}~{int(times or 1) + 1}"


def id_before(id: str) -> str:
    """The id under which it was asked for the time before; empty if there was none."""
    task, _, own = id.rpartition("/")
    first, _, times = own.partition("~")
    if not times.isdigit():
        return ""
    return f"{task}/{first}" if times == "2" else f"{task}/{first}~{int(times) - 1}"
