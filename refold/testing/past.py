"""What a journal alone says of a task's commands and questions, and the laws that follow from it.

Nothing here calls the core, so that no law rests on the code that it checks. `laws` passes in what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refold.core.commands import AskApproval, AskUser, CallTool, Notify
from refold.core.events import (
    EVENT,
    RESULT_TYPES,
    ChildAsked,
    CommandFailed,
    DependencyResolved,
    Event,
    GateTimedOut,
    GraceOver,
    Recovered,
    ReminderDue,
)
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import UNDO, Snapshot
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, Want
from refold.core.retry_policy import FailureKind

Holds = Callable[[bool, str], None]
"""Called with whether a law holds, and with the law."""


class Past:
    """What a journal says so far, entry by entry.

    Args:
        base: The task before the first entry. A recovered or forked task has open questions by then.
        earlier: The past of the task that this one was recovered from; None for any other task.

    Attributes:
        returned: Ids of commands that have a result.
        failed: Ids of commands whose last attempt failed, and for which the journal has no retry.
        unknown: Those of them that failed with an unknown outcome, and that no operator has resolved.
        questions: Ids of open questions and gates, each with the child that asks; None for the task's own.
        repeats: Ids of commands that perform compensated effects again; the skill relies on these effects.
        begun: The task has taken an event.
    """

    def __init__(self, base: Snapshot, earlier: Past | None = None) -> None:
        self.returned: set[str] = set() if earlier is None else set(earlier.returned)
        self.failed: set[str] = set()
        self.unknown: set[str] = set()
        self.questions: dict[str, str | None] = {wait.gate: None for wait in base.waits}
        self.repeats = {id for id, one in base.pending.items() if one.background}
        self.begun = False

    def add(self, entry: Entry) -> None:
        """Take one more entry."""
        if entry.refused:
            return
        self.begun = True
        self._came(entry.event)
        for backoff in entry.backoffs:
            self._tried_again([backoff.invocation_id])
        for issued in entry.commands:
            if isinstance(issued.command, AskUser | AskApproval):
                self.questions[issued.invocation_id] = None
        if isinstance(entry.event, ChildAsked):
            part = entry.event.invocation_id
            self.questions = {gate: by for gate, by in self.questions.items() if by != part}
            self.questions |= {wait.gate: part for wait in entry.event.waits}
        for gate in self.questions if entry.ends else entry.closed:
            self.questions = {open: by for open, by in self.questions.items() if open != gate}

    def _came(self, event: Event) -> None:
        match event:
            case CommandFailed(invocation_id=id, failure=failure):
                self.failed.add(id)
                if failure.kind is FailureKind.UNKNOWN:
                    self.unknown.add(id)
            case DependencyResolved(invocation_id=None):
                self.failed.clear()  # the operator resolved one of these; the journal does not say which
            case DependencyResolved(invocation_id=str(id)):
                self._tried_again([id])
            case Recovered(again=dict(again)):
                self._came(EVENT.validate_python(again))
            case result if isinstance(result, RESULT_TYPES):
                self.returned.add(result.invocation_id)
                self.failed.discard(result.invocation_id)
                self.unknown.discard(result.invocation_id)
            case _:
                pass

    def _tried_again(self, ids: Iterable[str]) -> None:
        self.failed.difference_update(ids)
        self.unknown.difference_update(ids)


def check_past(
    past: Past, before: dict[str, Want], entry: Entry, after: dict[str, Want], ends: tuple[bool, bool], law: Holds
) -> None:
    """The laws that a journal alone decides.

    Args:
        past: The journal up to the entry, this one included.
        before: What was wanted before the entry.
        entry: The entry.
        after: What is wanted after it.
        ends: Whether the task had ended before the entry, and after it.
        law: Called for each law.
    """
    ended_before, ended = ends
    missing = past.repeats - past.returned - (past.failed - past.unknown)
    asked = [
        one for one in entry.commands if not isinstance(one.command, Notify) and not one.invocation_id.endswith(UNDO)
    ]
    law(
        not missing or not (asked or entry.messages or entry.artifacts),
        f"the skill waits until compensated effects are performed again, but {sorted(missing)} is not yet",
    )
    effects = {id_of(want) for want in after.values() if not is_of_gate(want)}
    settled = effects & (past.returned | past.failed)
    law(not settled, f"a settled command is never wanted again, but {sorted(settled)} is")
    alarms = {
        want.event.gate
        for want in after.values()
        if isinstance(want, Alarm) and isinstance(want.event, ReminderDue | GateTimedOut)
    }
    own = {gate for gate, part in past.questions.items() if part is None}
    law(alarms <= own, f"only an open question has a timer, but {sorted(alarms - own)} is not open")
    if ended:
        law(bool(not ended_before or before or not after), "an ended task that wants nothing stays so")
        late = {key: want for key, want in after.items() if not (id_of(want).endswith(UNDO) or is_of_gate(want))}
        law(
            all(key in before and _is_compensable(want) for key, want in late.items()),
            "a command that is wanted after the end was wanted before it and can be compensated, or compensates",
        )
    elif past.begun and not after:
        law(
            bool(past.questions or past.unknown),
            "an open task that wants nothing waits for a person: for an answer, a decision or an operator",
        )


def id_of(want: Want) -> str:
    """The invocation id of the command that is performed, retried or sent an answer; empty for the alarm of a gate."""
    return (
        want.task_id
        if isinstance(want, SendAnswer)
        else str(getattr(getattr(want, "event", want), "invocation_id", ""))
    )


def is_of_gate(want: Want) -> bool:
    """Whether it is an alarm of a question or gate."""
    return isinstance(want, Alarm) and isinstance(want.event, ReminderDue | GateTimedOut | GraceOver)


def _is_compensable(want: Want) -> bool:
    if isinstance(want, Alarm):
        return isinstance(want.event, CommandFailed)  # a command of a dry fork
    return isinstance(want, Perform) and isinstance(want.command, CallTool) and want.command.undo is not None
