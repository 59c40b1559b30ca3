"""The turns of a script: what a user says, and what comes back from what the skill asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from refold.core.content import Content, as_content
from refold.core.retry import Failure
from refold.testing.answers import as_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user says something; see `user`."""

    content: Content
    slot: str | None = None
    delivery_id: str | None = None

    def __str__(self) -> str:
        said = self.content.data if self.content.has_data else self.content.text
        slot = f", slot={self.slot!r}" if self.slot is not None else ""
        return f"user({said!r}{slot})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A command comes back with a value; see `reply`."""

    id: str
    value: Any

    def __str__(self) -> str:
        return f"reply({self.id!r}, {repr(self.value)[:100]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """A command fails; see `fails`."""

    id: str
    failure: Failure

    def __str__(self) -> str:
        return f"fails({self.id!r}, {self.failure.kind.value}({self.failure.message!r}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fires:
    """A sleep, or the wait before a retry, is over; see `fires`."""

    id: str

    def __str__(self) -> str:
        return f"fires({self.id!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Time passes; see `passes`."""

    seconds: float

    def __str__(self) -> str:
        return f"passes({self.seconds:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancels:
    """Somebody stops the task; see `cancel`."""

    reason: str

    def __str__(self) -> str:
        return f"cancel({self.reason!r})" if self.reason else "cancel()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decides:
    """Somebody decides at a gate; see `approve` and `deny`."""

    slot: str
    approved: bool
    by: str
    comment: str = ""
    digest: str | None = None
    vouched_by: str | None = None
    changes: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{'approve' if self.approved else 'deny'}({self.slot!r}, by={self.by!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolves:
    """An operator says how it goes on with what is blocked; see `resolve`."""

    id: str | None
    retry: bool
    outcome: Any = None
    by: str = "operator"
    comment: str = ""

    def __str__(self) -> str:
        named = f"{self.id!r}, " if self.id is not None else ""
        return f"resolve({named}{'retry=True' if self.retry else f'outcome={repr(self.outcome)[:100]}'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What is sent is not taken; see `refused`."""

    turn: User | Cancels | Decides | Resolves
    because: str

    def __str__(self) -> str:
        return f"refused({self.turn})"


Turn = User | Reply | Fails | Fires | Passes | Cancels | Decides | Resolves | Refused


def user(said: str | Content | Any, *, slot: str | None = None, delivery_id: str | None = None) -> User:
    """The user says something: the first message, or an answer to an open question. A plain string means the same.

    Args:
        said: Text or content; a model, a dict or any other value is sent as data.
        slot: Which question it answers; None where one is open.
        delivery_id: The sender's id of the delivery.
    """
    return User(content=content_of(said), slot=slot, delivery_id=delivery_id)


def reply(id: str, value: Any = None) -> Reply:
    """What the skill asked for under this id comes back with a value.

    A command that waits to be tried again is tried again first: the clock goes on to that moment.

    Args:
        id: The author's id of the command.
        value: The result; or a function that gets the command and gives the result.
    """
    return Reply(id=id, value=value)


def fails(id: str, failure: str | Failure | Exception = "it failed") -> Fails:
    """What the skill asked for under this id fails: for good, or `fails("charge", transient("busy"))`."""
    return Fails(id=id, failure=as_failure(failure))


def fires(id: str) -> Fires:
    """The sleep of this id is over, or the wait before the command's next try; the clock goes on to that moment.

    For a gate, by its slot: the reminder is due; after it, the time for a decision is over; then that for a late grant.
    """
    return Fires(id=id)


def passes(seconds: float) -> Passes:
    """Time passes; each sleep, wait before a retry, probe, reminder and timeout that is due by then, at its moment."""
    return Passes(seconds=seconds)


def cancel(reason: str = "") -> Cancels:
    """Somebody stops the task."""
    return Cancels(reason=reason)


def approve(
    slot: str,
    *,
    by: str = "somebody",
    comment: str = "",
    digest: str | None = None,
    vouched_by: str | None = "the test",
    changes: Mapping[str, Any] | None = None,
) -> Decides:
    """Somebody grants what the gate of this name asks for; late, too, in the time for it.

    Args:
        slot: The gate.
        by: Who grants it.
        comment: Why.
        digest: What they were shown; None takes what the gate shows.
        vouched_by: Who vouches for them; None is an unsigned decision.
        changes: What they change in what is shown.
    """
    return Decides(
        slot=slot, approved=True, by=by, comment=comment, digest=digest, vouched_by=vouched_by, changes=changes
    )


def deny(
    slot: str,
    *,
    by: str = "somebody",
    comment: str = "",
    digest: str | None = None,
    vouched_by: str | None = "the test",
) -> Decides:
    """Somebody denies what the gate of this name asks for; the arguments are those of `approve`."""
    return Decides(slot=slot, approved=False, by=by, comment=comment, digest=digest, vouched_by=vouched_by)


def resolve(
    id: str | None = None, *, retry: bool = False, outcome: Any = None, by: str = "operator", comment: str = ""
) -> Resolves:
    """An operator says how it goes on with a blocked command: perform it again, or take this as its outcome.

    Args:
        id: The author's id of the command; None where only one is blocked.
        retry: Perform it again.
        outcome: Its result, where `retry` is false.
        by: Who says so.
        comment: Why.
    """
    data = outcome.model_dump(mode="json") if isinstance(outcome, BaseModel) else to_jsonable_python(outcome)
    return Resolves(id=id, retry=retry, outcome=data, by=by, comment=comment)


def refused(turn: str | User | Cancels | Decides | Resolves, *, because: str = "") -> Refused:
    """This is sent and not taken; the script goes on as if nothing had been.

    Args:
        turn: What is sent.
        because: A part of the reason that is given.
    """
    return Refused(turn=user(turn) if isinstance(turn, str) else turn, because=because)


def content_of(said: str | Content | Any) -> Content:
    """Text and content as they are; any other value as data."""
    if isinstance(said, str | Content):
        return as_content(said)
    data = said.model_dump(mode="json") if isinstance(said, BaseModel) else to_jsonable_python(said)
    return Content.from_data(data)
