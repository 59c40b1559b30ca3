"""Ids of commands that are taken over from another task, in recovery and forks."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from refold.core.fold.snapshot import Pending


def anew(pending: Pending, id: str) -> Pending:
    """A pending command as a new task sends it: under this id, with attempts counted from the start."""
    return Pending(invocation_id=id, command=pending.command, background=pending.background, given=pending.given)


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


def next_id(id: str) -> str:
    """The id of a command that is performed once more: first `T/1.1`, then `T/1.1~2`, then `T/1.1~3`."""
    task, _, number = id.rpartition("/")
    first, _, times = number.partition("~")
    return f"{task}/{first}~{int(times or 1) + 1}"


def first_id(id: str) -> str:
    """The id under which it was asked for the first time."""
    task, _, own = id.rpartition("/")
    return f"{task}/{own.partition('~')[0]}"


def place(id: str) -> tuple[int, int]:
    """Where a command stands among those of its task: the entry that issued it, and its number there."""
    entry, _, number = id.rpartition("/")[2].partition("~")[0].partition(".")
    return int(entry), int(number)


def id_before(id: str) -> str:
    """The inverse of `next_id`: `T/1.1` for `T/1.1~2`; empty for a command's first id."""
    task, _, number = id.rpartition("/")
    first, _, times = number.partition("~")
    if not times.isdigit():
        return ""
    return f"{task}/{first}" if times == "2" else f"{task}/{first}~{int(times) - 1}"
