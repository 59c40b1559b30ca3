"""The errors that an engine raises, as one tree.

EngineError               what runs the tasks cannot do as asked
├── TaskNotFound          no task has this id
├── TaskExists            a task with this id was started before
├── RunGone               a part of the task's journal is kept no more
├── UnknownSkill          nobody serves a skill of this name
├── ScheduleNotFound      no schedule has this id
├── NotConnected          no server answers at the address, or it is too busy
│   └── Taken             it has answered before: the task has taken what was sent
├── NoWorker              the server answers, but no worker does
│   └── CodeChanged       its worker's code differs from what was recorded
├── OutcomeUnknown        nobody knows whether an effect took place
├── CodecError            a codec is refused, or a value cannot be read without one
└── StorageError          a large value cannot be kept or read
    └── PayloadTooLarge   too large for Temporal while storage for large values is off, or for the codec
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from shlex import quote

from refold.core.errors import RefoldError
from refold.core.values import shortened


class EngineError(RefoldError):
    """What runs the tasks cannot do what was asked; the message says what to do."""


class TaskNotFound(EngineError):
    """No task has this id."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"no task {task_id!r}; `refold list` shows the tasks of this server")


class TaskExists(EngineError):
    """A task with this id was started before; ids are never used twice."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(
            f"task {task_id!r} exists already; `refold show {quote(task_id)}` shows it, another id starts a new one"
        )


class RunGone(EngineError):
    """A part of a task's journal is kept no more: the server deleted its run, or the storage has lost its entries.

    Entries that were damaged in the storage are lost, too. Not raised where the server or the storage cannot be
    reached: the entries may be there.
    """


class UnknownSkill(EngineError):
    """Nobody serves a skill of this name."""

    def __init__(self, skill: str, known: Sequence[str]) -> None:
        self.skill = skill
        self.known = tuple(known)
        listed = ", ".join(sorted(known)) or "none"
        near = get_close_matches(skill, known, n=1) if len(known) > 1 else ()
        meant = "".join(f"; did you mean {one!r}?" for one in near)
        super().__init__(f"no skill {skill!r}; the skills known here: {listed}{meant}")


class ScheduleNotFound(EngineError):
    """No schedule has this id."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"no schedule {shortened(id, 200)!r}; `refold schedule list` shows the schedules")


class NotConnected(EngineError):
    """No server answers at the address that was tried, or it is too busy to take the call."""


class Taken(NotConnected):
    """The task has taken what was sent, which is not to be sent again; how the task stands now is not known."""


class NoWorker(EngineError):
    """The server answers, but no worker that serves the task does."""


class CodeChanged(NoWorker):
    """The worker's code differs from what was recorded of the task, so the task accepts no event."""


class OutcomeUnknown(EngineError):
    """An effect was started, and nobody knows whether it took place.

    Attributes:
        key: Its idempotency key.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"effect {key!r} was started before, and nobody knows whether it took place: give a `probe` that finds "
            "out, or find out yourself, and give one that returns what you found: `TookPlace(result)`, or None"
        )


class CodecError(EngineError):
    """A codec cannot be used, or a value cannot be read without one."""


class StorageError(EngineError):
    """A large value cannot be kept in, or read from, the storage for large values."""


class PayloadTooLarge(StorageError):
    """A value is larger than Temporal takes, and storage for large values is off; or larger than the codec takes."""
