"""The audit of a skill with a contract: what each step read, wrote and moved, and what a field came from.

The fold writes it into the journal's entries: there is nothing beside the journal that could fail, and nothing to
switch on. Source: S1.58 to S1.60.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

from pydantic import JsonValue

from refold.core.errors import CommandError, ContractError, InputRejected, text_of
from refold.core.retry import FailureKind
from refold.core.values import Value, lean

ORCHESTRATOR = "orchestrator"
"""Who writes what no step may write: the first state, and what a move changes by itself."""


class ErrorRecord(Value):
    """Why a step failed, as data: what a state keeps of an error, and what the audit holds.

    Attributes:
        type: The error's class, or the failure's short name: `UnauthorizedWriteError`, `http_404`.
        message: One sentence for people.
        stage: The step.
        at: When.
        retryable: It was a "try later", and no try is left.
        lifecycle: The state of the skill's own lifecycle that the step ran in.
        field: The field that it is about; empty where it is about none.
        rule: What had to hold, where a contract was broken.
        expected: What would have been right.
        actual: What came.
    """

    type: str
    message: str
    stage: str
    at: datetime
    retryable: bool = lean(False)
    lifecycle: str = lean("")
    field: str = lean("")
    rule: str = lean("")
    expected: str = lean("")
    actual: str = lean("")


def error_record(error: BaseException, kind: str, *, stage: str, lifecycle: str, at: datetime) -> ErrorRecord:
    """Why a step failed, as data; a command's failure has a short name of its own instead of `kind`."""
    about: dict[str, Any] = {"type": kind}
    match error:
        case ContractError(field=field, rule=rule, expected=expected, actual=actual):
            about |= {"field": field, "rule": rule, "expected": expected, "actual": actual}
        case CommandError(failure=failure):
            about |= {"type": failure.type, "retryable": failure.kind is FailureKind.TRANSIENT}
        case _:
            pass
    return ErrorRecord(message=text_of(error), stage=stage, lifecycle=lifecycle, at=at, **about)


class StateTransitionEvent(Value):
    """One execution of a step. Source: S1.58.

    Attributes:
        session_id: The state's field of this name; the task's id where it has none.
        stage: The step; `orchestrator` for the first state.
        from_state: The lifecycle's state before; the step's own name where the contract has no moves.
        to_state: The state after; `from_state` where the step failed.
        read_set: The fields that it may read.
        write_set: The fields that it may write.
        patch: What it wrote; empty where it failed.
        owned: What the orchestrator wrote with it.
        started_at: When the step was entered: the time of the entry that did it.
        finished_at: When it ended: the time of this entry.
        awaited: The invocation ids of what it waited for, oldest first.
        free: It may make any move, as it declares with `enforce_moves=False`.
        err: Why it failed; None where it did not.
    """

    session_id: str
    stage: str
    from_state: str
    to_state: str
    read_set: tuple[str, ...] = lean(())
    write_set: tuple[str, ...] = lean(())
    patch: dict[str, JsonValue] = lean(factory=dict)
    owned: dict[str, JsonValue] = lean(factory=dict)
    started_at: datetime
    finished_at: datetime
    awaited: tuple[str, ...] = lean(())
    free: bool = lean(False)
    err: ErrorRecord | None = lean()


class Written(Value):
    """A field as somebody wrote it.

    Attributes:
        field: Its name.
        value: What was written.
        step: Who wrote it; `orchestrator` where no step did.
        seq: The journal's entry.
        at: When.
    """

    field: str
    value: JsonValue = lean()
    step: str
    seq: int
    at: datetime


class Explanation(Written):
    """Where the value of a field comes from.

    Attributes:
        started_at: When the step that wrote it was entered.
        from_state: The lifecycle's state before.
        to_state: The state after.
        sources: What that step could read, as it stood then.
        awaited: The invocation ids of what the step waited for: model calls, tools, people.
        earlier: The entries that wrote the field before, oldest first.
    """

    started_at: datetime
    from_state: str
    to_state: str
    sources: tuple[Written, ...] = lean(())
    awaited: tuple[str, ...] = lean(())
    earlier: tuple[int, ...] = lean(())


class Audited(Protocol):
    """A numbered entry, as far as this is about it."""

    @property
    def seq(self) -> int: ...

    @property
    def audit(self) -> tuple[StateTransitionEvent, ...]: ...


def explain(entries: Iterable[Audited], field: str, *, upto: int | None = None) -> Explanation:
    """Who wrote a field last, when, and from what.

    Args:
        entries: The journal, from its first entry on.
        field: Of the state of the skill's contract.
        upto: The entry to look back from; None is the newest. A source's own `seq` leads further back.

    Raises:
        InputRejected: Nobody has written the field, or the skill has no contract.
    """
    last: dict[str, Explanation] = {}
    for entry in entries:
        if upto is not None and entry.seq > upto:
            break
        for event in entry.audit:
            readable = [_plain(last[name]) for name in event.read_set if name in last]
            for name, value in event.patch.items():
                last[name] = _explained(event, entry.seq, name, value, event.stage, last.get(name), readable)
            for name, value in event.owned.items():
                last[name] = _explained(event, entry.seq, name, value, ORCHESTRATOR, last.get(name), [])
    if field not in last:
        known = ", ".join(last) or "nothing: its skill has no contract, or it has not begun"
        raise InputRejected(f"nobody has written {field!r} in this task; written so far: {known}")
    return last[field]


def _explained(
    by: StateTransitionEvent, seq: int, name: str, value: JsonValue, writer: str, before: Explanation | None,
    sources: list[Written],
) -> Explanation:  # fmt: skip
    return Explanation(
        field=name, value=value, step=writer, seq=seq, at=by.finished_at, started_at=by.started_at,
        from_state=by.from_state, to_state=by.to_state, sources=tuple(sources),
        awaited=by.awaited if writer == by.stage else (),
        earlier=() if before is None else (*before.earlier, before.seq),
    )  # fmt: skip


def _plain(known: Explanation) -> Written:
    return Written(field=known.field, value=known.value, step=known.step, seq=known.seq, at=known.at)
