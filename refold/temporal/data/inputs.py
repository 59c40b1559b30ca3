"""What a task is sent, by refold or by Temporal's own tools: read so that no input fails a workflow task.

By itself the SDK drops a signal whose input it cannot read, before any handler runs, and fails the workflow task of a
start for the same reason, again and again. With `TaskPayloadConverter` such an input arrives as `Unread`. The functions
below make an event of what arrived, or raise `InputRejected`, which says what came and what was expected.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import JsonValue, ValidationError
from pydantic_core import from_json, to_json
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import FailureError

from refold.conversation import LlmOutcome
from refold.core.chat import Reply
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.events import ChildAsked, DependencyResolved, UserMessage
from refold.core.fold.snapshot import Snapshot
from refold.core.schema import problems
from refold.core.values import Value, shortened, unreadable
from refold.engine import StorageError
from refold.formats import NewerFormat, current
from refold.temporal.data.absent import NOW, SURE, WHY
from refold.temporal.data.wire import START, UNREADABLE_QUESTION, PartEnded, SignedDecision, TaskResult, TaskStart

V = TypeVar("V", bound=Value)

CAME_CHARS = 500
"""How much of what came a refusal shows."""

EXPECTED = {
    UserMessage: "a text, or an object with text or data, and perhaps slot, gate, delivery_id or sender",
    SignedDecision: "an object with gate, digest, decision (approved or denied) and approver, and perhaps comment",
    DependencyResolved: "an object with retry (true) or outcome, and perhaps invocation_id, by and comment",
    ChildAsked: "an object with invocation_id, waits and unresolved; only a task's own parts send it",
    PartEnded: "an object with invocation_id and outcome or failure; only a task's own parts send it",
    TaskStart: "the first message: a text, or an object with text or data",
}


RESULTS: frozenset[type] = frozenset({LlmOutcome, Reply, TaskResult})
"""What refold's own activities and parts return. Others can, too: whoever completes an activity by hand, or serves a
workflow by the name of a skill."""

_WRITTEN = re.compile(r"start/\d{1,9}")


@dataclass(frozen=True, slots=True)
class Unread:
    """An input that cannot be read.

    Attributes:
        why: Why, with its encoding and size.
        size: Its size in bytes.
    """

    why: str
    size: int


class Newer(Unread):
    """A result of refold's but for fields or values that this release does not know: a newer one returned it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Absent(Unread):
    """An input that this worker cannot get (`refold.temporal.data.absent`).

    Attributes:
        now: The worker's error.
        sure: The input may be refused, as far as the worker knows.
    """

    now: str
    sure: bool


@dataclass(frozen=True, slots=True)
class Got:
    """An input that came by a reference, or encrypted, and that a worker may once not have got.

    Attributes:
        value: The input.
        why: The words by which it was refused then.
        size: Its size in bytes.
    """

    value: Any
    why: str
    size: int


class AnotherRelease(Exception):
    """Newer code started or saved a task, refold's or its skill's: a worker with that code can go on with it."""


class Added(InputRejected):
    """What came has fields or values that this release does not know, and nothing else is wrong with it."""


class QuestionAbsent(StorageError, FailureError):
    """What a query asks cannot be got here.

    Its message stays readable where others are encrypted: whoever asks may lack the key, too. It is a `FailureError`,
    since the SDK would put words of its own in place of another error's.
    """


class TaskPayloadConverter(PayloadConverter):
    """A converter for the workflows of tasks: an input without a type, or a result, that cannot be read is `Unread`."""

    def __init__(self, inner: PayloadConverter) -> None:
        self.inner = inner

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """See the SDK."""
        return self.inner.to_payloads(values)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See the SDK."""
        if type_hints is not None and not RESULTS.issuperset(type_hints):
            absent = [payload.metadata[NOW].decode() for payload in payloads if NOW in payload.metadata]
            if absent and _asks():
                raise QuestionAbsent(f"{UNREADABLE_QUESTION}: {absent[0]}")
            return self.inner.from_payloads(payloads, type_hints)
        return [_judgeable(payload, self._read(payload, type_hints)) for payload in payloads]

    def _read(self, payload: Payload, type_hints: list[type] | None) -> Any:
        try:
            with _collector_paused():
                return self.inner.from_payloads([payload], type_hints)[0]
        except NewerFormat:
            raise  # a worker of that release can read it
        except Exception as error:  # noqa: BLE001 - whatever a converter says of bytes from outside
            found = problems(error) if isinstance(error, ValidationError) else str(error)
            encoding = payload.metadata.get("encoding", b"no encoding").decode(errors="replace")
            size = len(payload.data)
            why = f"{size:,} bytes of {shortened(encoding, 100)}: {shortened(found, CAME_CHARS)}"
            newer = isinstance(error, ValidationError) and adds(error, payload.data)
            return Newer(why, size) if newer else Unread(why, size)


_UNKNOWN = frozenset({"extra_forbidden", "union_tag_invalid", "literal_error", "enum"})
"""What pydantic calls a field, or a value of a closed list, that this release does not know."""


def adds(error: ValidationError, data: Any) -> bool:
    """Whether all that is wrong with data is what a newer release may have added: fields, or values of closed lists
    such as the kinds of a question, that this release does not know, beside fields that it knows.

    Args:
        error: What is wrong.
        data: JSON data, or its text as bytes.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if any(one["type"] not in _UNKNOWN for one in found):
        return False
    given = from_json(data) if isinstance(data, bytes) else data
    unknown = {one["loc"][0] for one in found if len(one["loc"]) == 1}
    return isinstance(given, dict) and not unknown.issuperset(given)


def _judgeable(payload: Payload, value: Any) -> Any:
    if len(payload.metadata) == 1 or WHY not in payload.metadata:
        return value
    why, size = payload.metadata[WHY].decode(), len(payload.data)
    if NOW not in payload.metadata:
        if _asks():
            return value  # a query's, of which history holds nothing
        return Got(value, why, size)
    return Absent(why, size, payload.metadata[NOW].decode(), SURE in payload.metadata)


def _asks() -> bool:
    """Whether a query is read."""
    return workflow.in_workflow() and workflow.unsafe.is_read_only()


def for_tasks(factory: Callable[[], PayloadConverter]) -> Callable[[], PayloadConverter]:
    """What makes the converter of a task's workflow, from what makes the worker's."""
    return lambda: TaskPayloadConverter(factory())


LONGEST_ID = 950
"""The most characters of a task's id. The server takes 1,000, and the ids of commands begin with their task's."""


def check_start(task_id: str, cron: str | None) -> None:
    """Refuse what Temporal's own tools can start, and what could be no task.

    Args:
        task_id: The workflow's id.
        cron: The workflow's cron schedule, if it was started by one.

    Raises:
        InputRejected: The id is too long for its commands to be named, or the task has runs of one id by a clock.
    """
    if len(task_id.encode()) > LONGEST_ID:
        raise InputRejected(
            f"the task's id has {len(task_id.encode())} characters; it may have {LONGEST_ID}, since the ids of its "
            "commands begin with it. A part's id begins with its task's: do parts call each other without end?"
        )
    if cron:
        raise InputRejected(
            f"the task was started by the cron schedule {shortened(cron, CAME_CHARS)!r}: each run would have its id, "
            "and an effect that one of them made would count as made for all; `temporal schedule create` starts each "
            "task under an id of its own"
        )


def start_from(
    inputs: Sequence[Any], version: int | None = None, *, goes_on: bool = False, is_part: bool = False
) -> TaskStart:
    """What a task starts with. Data that refold itself wrote has a key that says so; any other data is a message.

    Args:
        inputs: The workflow's.
        version: Of the skill's code at hand; None takes a state of any version.
        goes_on: The task's run before wrote them, so no snapshot among them is somebody's mistake.
        is_part: Another task wrote them, so no field among them is.

    Raises:
        InputRejected: It can be no task's first message.
        AnotherRelease: A newer release of refold wrote it, or a newer version of the skill.
    """
    given = _only(inputs, TaskStart)
    written = given.get("refold") if isinstance(given, dict) else None
    if not isinstance(written, str) or not _WRITTEN.fullmatch(written):
        return TaskStart(message=_message(given, TaskStart))
    try:
        given = current("start", given, int(written.partition("/")[2]))
        start = _fitting(TaskStart, {**given, "refold": START})
    except NewerFormat as error:
        by = f"another release of refold started this task ({written})"
        raise AnotherRelease(f"{by}; this worker knows {START}: {error}") from error
    except InputRejected as error:
        if is_part and isinstance(error, Added):
            raise AnotherRelease(f"another release of refold started this part: {error}") from error
        if not goes_on or "snapshot" not in given:
            raise
        raise AnotherRelease(f"another release of refold saved this task's run before: {error}") from error
    if not any((start.message, start.snapshot, start.recover, start.fork)):
        raise _rejected("it holds no message, and nothing to go on from", inputs, TaskStart)
    if version is not None and (newer := max(map(_version, _bases(start)), default=0)) > version:
        raise AnotherRelease(
            f"version {newer} of its skill saved this task's state; this worker has version {version}: a worker with "
            "the newer code goes on with it"
        )
    return start


def input_of(start: TaskStart) -> TaskStart | str:
    """The input of a task's workflow: where it starts with a text and nothing else, the text, which is read alike."""
    text = "" if start.message is None else start.message.content.text
    return text if start == TaskStart(message=UserMessage(content=Content.from_text(text))) else start


def message_from(inputs: Sequence[Any]) -> UserMessage:
    """A message that a task is sent.

    Raises:
        InputRejected: It is none.
    """
    return _message(_only(inputs, UserMessage), UserMessage)


def value_from(kind: type[V], inputs: Sequence[Any]) -> V:
    """A decision, a resolution or a part's question that a task is sent.

    Raises:
        InputRejected: It is none.
    """
    return _fitting(kind, _only(inputs, kind))


def reason_from(inputs: Sequence[Any]) -> str:
    """Why a task should stop: whatever came is a reason, and a request to stop is never refused for it."""
    if not inputs or inputs[0] is None:
        return ""
    return inputs[0] if isinstance(inputs[0], str) else _shown(inputs)


def size_of(inputs: Sequence[Any]) -> int:
    """How large inputs were, in bytes, about."""
    return sum(one.size if isinstance(one, Unread | Got) else len(_as_text(one).encode()) for one in inputs)


def _bases(start: TaskStart) -> Iterator[Snapshot]:
    """The snapshots with a state that a task goes on from."""
    if start.snapshot is not None and start.snapshot.has_begun:
        yield start.snapshot
    if start.recover is not None:
        yield start.recover.base
    if start.fork is not None:
        yield start.fork.journal.base


def _version(snapshot: Snapshot) -> int:
    return snapshot.skill_version


def _only(inputs: Sequence[Any], kind: type[Value]) -> Any:
    if len(inputs) != 1 or inputs[0] is None:
        count = len(inputs) or "no"
        raise _rejected("nothing came" if len(inputs) == 1 else f"{count} inputs came", inputs, kind)
    if isinstance(inputs[0], Unread):
        raise _rejected("what came cannot be read", inputs, kind)
    return inputs[0]


def _message(said: Any, kind: type[Value]) -> UserMessage:
    if why := unreadable(said):
        raise _rejected(f"what came {why}", [said], kind)
    try:
        return as_message(said)
    except ValidationError as error:
        raise _rejected(problems(error), [said], kind) from None


def _fitting(kind: type[V], given: Any) -> V:
    try:
        with _collector_paused():
            return kind.model_validate(given)
    except ValidationError as error:
        rejected = _rejected(problems(error), [given], kind)
        raise (Added(str(rejected)) if adds(error, given) else rejected) from None


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python's collector from looking through a large value while it is made.

    A new run of a task with 20,000 messages is read in 0.06 s instead of 0.7 s, and the SDK allows an activation two.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rejected(why: str, inputs: Sequence[Any], kind: type[Value]) -> InputRejected:
    came = f"{_CAME}{_shown(inputs)})" if inputs else ""
    return InputRejected(f"{shortened(why, CAME_CHARS)}{came}{_EXPECTED}{EXPECTED[kind]}")


_CAME, _EXPECTED = " (came: ", "; expected: "


def as_logged(reason: str) -> str:
    """Why an input was refused, without the input: logs contain no texts of people."""
    why, came, rest = reason.partition(_CAME)
    wanted = rest.rpartition(_EXPECTED)[2]
    return why + _EXPECTED + wanted if came and wanted in EXPECTED.values() else why


def _shown(inputs: Sequence[Any]) -> str:
    return shortened(", ".join(one.why if isinstance(one, Unread) else _as_text(one) for one in inputs), CAME_CHARS)


def _as_text(value: Any) -> str:
    try:
        return to_json(value, inf_nan_mode="strings", bytes_mode="base64", fallback=str).decode()
    except ValueError:
        return type(value).__name__


_NAMED = ("slot", "gate", "delivery_id", "sender", "message_id", "early")
_SPOKEN = {"text", "data", "content", *_NAMED}


def as_message(said: JsonValue) -> UserMessage:
    """The message of a signal or an update, in whichever form it was sent.

    A string is text. An object with `text`, `data` or `content`, and perhaps `slot`, `gate`, `delivery_id` or
    `sender`, is what it says. Anything else is data.

    Raises:
        ValidationError: It is null, or no JSON data.
    """
    if isinstance(said, str):
        return UserMessage(content=Content.from_text(said))
    if isinstance(said, dict) and said.keys() <= _SPOKEN and said.keys() & {"text", "data", "content"}:
        try:
            return _spoken(said)
        except ValidationError:
            pass  # it only looks like ours
    return UserMessage(content=Content.from_data(said))


def _spoken(said: dict[str, Any]) -> UserMessage:
    rest = {key: said[key] for key in _NAMED if said.get(key) is not None}
    if "content" in said:
        return UserMessage(content=Content.model_validate(said["content"]), **rest)
    content = Content.from_text(said["text"]) if "text" in said else Content.from_data(said["data"])
    return UserMessage(content=content, **rest)
