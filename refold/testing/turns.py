"""The turns of a script: messages of the user, and results of commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from refold.core.content import Content, as_content
from refold.core.errors import shown
from refold.core.retry_policy import Failure
from refold.core.values import LONGEST_S
from refold.engine.arguments import Within, takes
from refold.testing.answers import ScriptError, as_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A message of the user; see `user`."""

    content: Content
    slot: str | None = None
    delivery_id: str | None = None

    def __str__(self) -> str:
        said = self.content.data if self.content.has_data else self.content.text
        slot = f", slot={self.slot!r}" if self.slot is not None else ""
        return f"user({said!r}{slot})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """A command's result; see `reply`."""

    id: str
    value: Any

    def __str__(self) -> str:
        return f"reply({self.id!r}, {repr(self.value)[:100]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """A command's failure; see `fails`."""

    id: str
    failure: Failure

    def __str__(self) -> str:
        return f"fails({self.id!r}, {self.failure.kind.value}({self.failure.message!r}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fires:
    """The end of a sleep or of a backoff; see `fires`."""

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
    """A cancel; see `cancel`."""

    reason: str

    def __str__(self) -> str:
        return f"cancel({self.reason!r})" if self.reason else "cancel()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decides:
    """A decision at a gate; see `approve` and `deny`."""

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
    """An operator's resolution of a blocked command; see `resolve`."""

    id: str | None
    retry: bool
    outcome: Any = None
    by: str = "operator"
    comment: str = ""

    def __str__(self) -> str:
        named = f"{self.id!r}, " if self.id is not None else ""
        return f"resolve({named}{'retry=True' if self.retry else f'outcome={repr(self.outcome)[:100]}'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuses:
    """A turn that the task refuses; see `refused`."""

    turn: User | Cancels | Decides | Resolves
    because: str

    def __str__(self) -> str:
        return f"refused({self.turn})"


Turn = User | Replies | Fails | Fires | Passes | Cancels | Decides | Resolves | Refuses


@takes(ScriptError)
def user(said: str | Content | Any, *, slot: str | None = None, delivery_id: str | None = None) -> User:
    """The user sends a message: the first one, or an answer to an open question. A plain string means the same.

    Args:
        said: Text or content; a model, a dict or any other value is sent as data.
        slot: The question that it answers; None if only one is open.
        delivery_id: The sender's id of the delivery.
    """
    return User(content=content_of(said), slot=slot, delivery_id=delivery_id)


@takes(ScriptError)
def reply(id: str, value: Any = None) -> Replies:
    """The command with this id gets a result.

    A command in backoff is retried first: the clock advances to that moment.

    Args:
        id: The author's id of the command.
        value: The result; or a function that gets the command and returns the result.
    """
    return Replies(id=id, value=value)


@takes(ScriptError)
def fails(id: str, failure: str | Failure | Exception = "it failed") -> Fails:
    """The command with this id fails: finally, or `fails("charge", transient("busy"))`."""
    return Fails(id=id, failure=as_failure(failure))


@takes(ScriptError)
def fires(id: str) -> Fires:
    """The sleep of this id, or the command's backoff, ends; the clock advances to that moment.

    For a gate, by its slot, the next of these comes due: the reminder, the timeout, the end of the time for a late
    grant.
    """
    return Fires(id=id)


@takes(ScriptError)
def passes(seconds: Annotated[float, Within(0, LONGEST_S)]) -> Passes:
    """Time passes; each sleep, backoff, probe, reminder and timeout that is due by then fires at its own time."""
    return Passes(seconds=seconds)


@takes(ScriptError)
def cancel(reason: str = "") -> Cancels:
    """A person cancels the task."""
    return Cancels(reason=reason)


@takes(ScriptError)
def approve(
    slot: str,
    *,
    by: str = "somebody",
    comment: str = "",
    digest: str | None = None,
    vouched_by: str | None = "the test",
    changes: Mapping[str, Any] | None = None,
) -> Decides:
    """A person grants the request of the gate with this name; also late, in the time for late grants.

    Args:
        slot: The gate.
        by: Who grants it.
        comment: Why.
        digest: The digest of what they were shown; None takes what the gate shows.
        vouched_by: Who vouches for them; None is an unsigned decision.
        changes: Their edits of what is shown.
    """
    return Decides(
        slot=slot, approved=True, by=by, comment=comment, digest=digest, vouched_by=vouched_by, changes=changes
    )


@takes(ScriptError)
def deny(
    slot: str,
    *,
    by: str = "somebody",
    comment: str = "",
    digest: str | None = None,
    vouched_by: str | None = "the test",
) -> Decides:
    """A person denies the request of the gate with this name; the arguments are those of `approve`."""
    return Decides(slot=slot, approved=False, by=by, comment=comment, digest=digest, vouched_by=vouched_by)


@takes(ScriptError)
def resolve(
    id: str | None = None, *, retry: bool = False, outcome: Any = None, by: str = "operator", comment: str = ""
) -> Resolves:
    """An operator resolves a blocked command: perform it again, or take this as its outcome.

    Args:
        id: The author's id of the command; None if only one is blocked.
        retry: Perform it again.
        outcome: Its result, if `retry` is false.
        by: Who resolves it.
        comment: Why.
    """
    return Resolves(id=id, retry=retry, outcome=_data(outcome), by=by, comment=comment)


@takes(ScriptError)
def refused(turn: str | User | Cancels | Decides | Resolves, *, because: str = "") -> Refuses:
    """The task refuses this turn; the script continues as if it had not been sent.

    Args:
        turn: What is sent.
        because: A part of the reason that the task gives.
    """
    return Refuses(turn=user(turn) if isinstance(turn, str) else turn, because=because)


def content_of(said: str | Content | Any) -> Content:
    """Text and content as they are; any other value as data."""
    if isinstance(said, str | Content):
        return as_content(said)
    return Content.from_data(_data(said))


def _data(value: Any) -> Any:
    try:
        return value.model_dump(mode="json") if isinstance(value, BaseModel) else to_jsonable_python(value)
    except PydanticSerializationError:
        raise ScriptError(f"data is what JSON can hold, or a model; got {shown(value)}") from None
