"""What every engine refuses, in the same words, and the reasons that it gives itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import ValidationError

from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import skill_id
from refold.core.content import Content
from refold.core.errors import DefinitionError, InputRejected, shown
from refold.core.events import UserMessage
from refold.core.lifecycle import Status, TaskState
from refold.core.schema import problems
from refold.core.values import Name, Value, shortened

T = TypeVar("T")
_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=,-]{0,199}")


def check_skill_id(skill: object) -> None:
    """The name of the skill that a new task is to run.

    Raises:
        InputRejected: It is no text, such as the skill itself in place of its id, or an empty one.
    """
    if isinstance(skill, str) and skill.strip():
        return
    try:
        way_out = f"; write {skill_id(skill_of(skill))!r}"
    except DefinitionError:
        way_out = ""
    raise InputRejected(f"a task starts by the id of its skill, a text; got {shown(skill)}{way_out}")


def check_task_id(id: object) -> str:
    """An id that somebody gives to a new task. It stands in addresses, file names and commands as it is.

    Raises:
        InputRejected: It is none.
    """
    if not isinstance(id, str):
        raise InputRejected(f"a task id is a text; got {shown(id)}; write str(...)")
    if _TASK_ID.fullmatch(id):
        return id
    raise InputRejected(
        f"a task id has 1 to 200 letters, digits and . _ - : @ + = , and begins with a letter or digit; got "
        f"{shortened(id, 200)!r}"
    )


LONGEST_DELIVERY_BYTES = 1_000
"""The longest id of a delivery that is sent to a task: a Temporal server takes no longer id."""


def check_delivery_id(id: str | None) -> None:
    """The id of a delivery that is sent to a task.

    Raises:
        InputRejected: It is too long.
    """
    if id is not None and (size := len(id.encode(errors="surrogatepass"))) > LONGEST_DELIVERY_BYTES:
        raise InputRejected(f"a delivery_id has at most {LONGEST_DELIVERY_BYTES:,} bytes in UTF-8; got {size:,}")


class Named(Value):
    """The names that a task is started with, as long as they may be.

    Attributes:
        owner: The task's owner.
        started_by: Who starts it.
        context: The conversation that it belongs to.
    """

    owner: Name | None = None
    started_by: tuple[Name, ...] = ()
    context: Name | None = None


LONGEST_DELAY = timedelta(days=3653)


def check_later(hold: bool, start_delay: timedelta | None) -> None:
    """What a new task is to wait for before it begins.

    Raises:
        InputRejected: The delay is out of bounds, or is given with `hold`.
    """
    if start_delay is None:
        return
    if hold:
        raise InputRejected("a task is held, or begins after a delay; give one of hold and start_delay")
    if not timedelta(0) < start_delay <= LONGEST_DELAY:
        raise InputRejected(f"a start is delayed by more than 0 and at most 10 years; got {start_delay}")


def message_of(content: object, **fields: Any) -> UserMessage:
    """A message that a program sends.

    Raises:
        InputRejected: The content is of another type, or a field does not fit; the message names each.
    """
    if not isinstance(content, Content):
        way_out = "write `Content.from_text(...)`, or `Content.from_data(...)` for data"
        raise InputRejected(f"a message must be Content, not {shown(content)}; {way_out}")
    return checked(UserMessage, content=content, **fields)


def checked(make: Callable[..., T], **fields: Any) -> T:
    """What `make` makes of fields that somebody outside has given.

    Raises:
        InputRejected: They do not fit; the message names each.
    """
    try:
        return make(**fields)
    except ValidationError as error:
        raise InputRejected(problems(error)) from None


HAS_BEGUN = "it has begun, or has ended; there is nothing to release"

NOT_NEEDED = "does not need it any more"


def not_needed(task_id: str) -> str:
    """Why a part of a task is canceled: the task has ended, or has dropped the command that the part is for."""
    return f"task {task_id!r} {NOT_NEEDED}"


def is_over(task_id: str, status: Status, lifecycle: TaskState) -> InputRejected:
    """The reason for refusing what is sent to a task that is over."""
    way_out = "recover it, or start a new one" if lifecycle is TaskState.FAILED else "start a new one"
    return InputRejected(f"task {task_id!r} has ended ({status}); {way_out}")


def nothing_to_cancel(task_id: str, status: Status) -> InputRejected:
    """The reason for refusing to cancel a task that has ended."""
    return InputRejected(f"task {task_id!r} has ended ({status}); there is nothing to cancel")


START_REFUSED = "its start was refused"


def start_refused(why: str) -> str:
    """Why a task failed whose start was refused, so that it never began."""
    return f"{START_REFUSED}, and its id is free: {why}"


def no_journal(task_id: str, why: str) -> str:
    """Why a task cannot be recovered that never began, or whose journal is gone."""
    return f"task {task_id!r} left no journal and cannot be recovered; start a new one: {why}"


def not_failed(task_id: str, status: Status) -> InputRejected:
    """The reason for refusing to recover a task that is open or completed."""
    return InputRejected(f"task {task_id!r} is {status}; only a task that failed or was canceled recovers")


def part_not_over(part: str) -> InputRejected:
    """The reason for refusing to recover a task while a part of it is not over."""
    return InputRejected(f"part {part!r} is not over; recover the task when it is")


def not_over(task_id: str) -> InputRejected:
    """The reason for refusing to recover a task that still compensates, or takes late grants."""
    return InputRejected(
        f"task {task_id!r} has ended and is not over: it takes late grants for some minutes, or undoes its "
        "effects; `refold show` says which. Recover it after that"
    )


def recovered_before(task_id: str, other: str, status: Status) -> InputRejected:
    """The reason for refusing to recover a task that another task recovers already."""
    return InputRejected(
        f"task {task_id!r} was recovered before: {other!r} goes on for it ({status}), and a second one would make "
        "the same effects again; should that one fail, recover it"
    )
