"""What a task takes over from the previous task of the same A2A conversation: its threads with models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refold.core.chat import Reply, Said, Thread, ToolReturn
from refold.core.errors import InputRejected
from refold.core.fold.snapshot import Snapshot
from refold.core.values import Value

UNANSWERED = "the task ended before this was called"


class Previous(Value):
    """The part of a previous task that the next task takes over.

    Attributes:
        task_id: The previous task's id.
        threads: The previous task's conversations with models, by name.
    """

    task_id: str
    threads: Mapping[str, Thread]


def check_previous(snapshot: Snapshot, owner: str | None) -> None:
    """Check that a new task of this owner may take over a task's threads.

    Raises:
        InputRejected: The task has another owner.
    """
    if snapshot.owner != owner:
        whose = "nobody" if snapshot.owner is None else "somebody else"
        raise InputRejected(f"task {snapshot.task_id!r} is owned by {whose}; a task goes on with its owner's own")


def previous_of(snapshot: Snapshot) -> Previous:
    """The part of a task that the next task takes over.

    Of a thread with numbered copies (`main~2`), only the newest is taken. A tool call without a result gets the result
    `UNANSWERED`, since providers refuse a conversation without one.
    """
    newest: dict[str, tuple[int, Thread]] = {}
    for name, thread in snapshot.threads.items():
        own, _, number = name.partition("~")
        copy = int(number) if number.isdigit() else 1
        if copy >= newest.get(own, (0, thread))[0]:
            newest[own] = copy, thread
    return Previous(task_id=snapshot.task_id, threads={name: _closed(thread) for name, (_, thread) in newest.items()})


def _closed(thread: Thread) -> Thread:
    last = thread.said[-1] if thread.said else None
    if not isinstance(last, Reply) or not last.tool_calls:
        return thread
    calls: Sequence[Said] = [
        ToolReturn(id=call.id, name=call.name, value=UNANSWERED, failed=True) for call in last.tool_calls
    ]
    return thread.after(calls)
