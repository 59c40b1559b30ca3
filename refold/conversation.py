"""Model calls between a task and its worker: a call contains the new turns, and only a hash of the earlier ones.

Otherwise a task's history would grow with the square of its conversation's length. The worker that performs the call
has the conversation cached under its hash, or queries the task for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field, JsonValue
from pydantic_core import to_json

from refold.core.chat import (
    EMPTY,
    Frame,
    Previous,
    Prior,
    Reply,
    Said,
    Thread,
    ToolReturn,
    Usage,
    UserSaid,
    hash_after,
    text_hash,
)
from refold.core.commands import CallChat
from refold.core.errors import InputRejected
from refold.core.fold.snapshot import Snapshot
from refold.core.schema import Schema, adapter, resolve
from refold.core.values import Value, lean

UNANSWERED = "this call has no result; it may have been made"
"""The model reads this where a conversation has no result of a call. Results come with the model call after them: if
that call failed, or the task ended before it, the model must not read that nothing was done."""

INLINE_BYTES = 512
"""The largest new turn, in bytes, that a model call contains. For a larger turn the call has a hash, since the history
has that turn already, as a message or a result."""

MEMORY_TOOLS = ("remember", "recall")
"""The tools whose worker is always told the task's owner, since they read and write what the owner's tasks remember."""


class Mention(Value):
    """A turn larger than `INLINE_BYTES`, replaced by its hash.

    Attributes:
        hash: The hash of the turn; of the value alone if the turn is a tool's result.
        id: The tool call's id.
        name: The tool's name.
        failed: See `ToolReturn`.
    """

    kind: Literal["mention"] = "mention"
    hash: str
    id: str | None = lean()
    name: str = lean("")
    failed: bool = lean(False)


Told = Annotated[UserSaid | ToolReturn | Reply | Mention, Field(discriminator="kind")]


class ChatRequest(Value):
    """A model call as sent to the worker that performs it.

    Attributes:
        thread: The conversation's name.
        prior_len: The number of earlier turns.
        prior_hash: The hash of the earlier turns.
        say: The new turns, in order; large ones as a `Mention`.
        frame: Instructions, tools and settings; None if they are those of the thread's previous call.
        frame_hash: The frame's hash if `frame` is None; otherwise empty.
        since: How many of the oldest turns are not sent to the model.
    """

    thread: str = lean("main")
    prior_len: Annotated[int, Ge(0)] = lean(0)
    prior_hash: str = lean("")
    say: tuple[Told, ...] = lean(())
    frame: Frame | None = lean()
    frame_hash: str = lean("")
    since: Annotated[int, Ge(0)] = lean(0)


class Conversation(Value):
    """A task's answer to a query for a conversation.

    Attributes:
        frame: The newest frame.
        said: The requested turns, oldest first.
    """

    frame: Frame
    said: tuple[Said, ...] = lean(())


class LlmOutcome(Value):
    """The outcome of a model call outside of a conversation, as the worker's activity returns it."""

    value: JsonValue
    model: str = lean("")
    usage: Usage | None = lean()


def json_schema(schema: Schema) -> dict[str, JsonValue]:
    """The JSON schema of a type.

    Raises:
        LookupError: The type's module is not loaded here.
    """
    if isinstance(schema, dict):
        return schema
    kind = resolve(schema)
    if kind is None:
        raise LookupError(f"type {schema!r} is not known here; import its module where this runs")
    return adapter(kind).json_schema()


def request_of(chat: CallChat, prior: Prior) -> ChatRequest:
    """A model call in the form sent to a worker.

    Args:
        chat: The command, with its frame.
        prior: The conversation before the call.
    """
    frame = chat.frame or Frame()
    return ChatRequest.trusted(
        thread=chat.thread,
        prior_len=len(prior.thread.said),
        prior_hash=prior.thread.hash,
        say=tuple(map(mentioned, chat.say)),
        frame=None if prior.framed else frame,
        frame_hash=frame.hash if prior.framed else "",
        since=chat.since,
    )


def mentioned(one: Said) -> Told:
    """A turn in the form sent to a worker: the turn itself, or its hash."""
    if len(one.model_dump_json()) <= INLINE_BYTES:
        return one
    if isinstance(one, ToolReturn):
        return Mention(hash=hash_of_value(one.value), id=one.id, name=one.name, failed=one.failed)
    return Mention(hash=hash_after("", [one]))


def hash_of_value(value: JsonValue) -> str:
    """The hash of a tool's result."""
    return text_hash(to_json(value).decode())


def conversation_of(snapshot: Snapshot, thread: str, since: int = 0, upto: int | None = None) -> Conversation:
    """The turns of a conversation from number `since` on and before number `upto`, counted from 0.

    The turns of a pending call are included.

    Raises:
        InputRejected: The task has no such conversation.
    """
    out = [
        one.command
        for one in snapshot.pending.values()
        if isinstance(one.command, CallChat) and one.command.thread == thread
    ]
    if thread not in snapshot.threads and not out:
        known = ", ".join(map(repr, snapshot.threads)) or "none"
        raise InputRejected(f"task {snapshot.task_id!r} has no conversation {thread!r}; it has {known}")
    found = snapshot.threads.get(thread, EMPTY)
    said = (*found.said, *(one for chat in out for one in chat.say))
    return Conversation(frame=found.frame, said=said[since:upto])


def mismatch(request: ChatRequest, prior: Iterable[Said], say: Iterable[Said], frame: Frame) -> str:
    """Why a conversation is not the one that the call refers to; empty if it is."""
    turns = tuple(prior)
    if len(turns) != request.prior_len or hash_after("", turns) != request.prior_hash:
        return (
            f"the {len(turns)} turns of thread {request.thread!r} hash to {hash_after('', turns) or 'nothing'}; the "
            f"call goes on after {request.prior_len} turns that hash to {request.prior_hash or 'nothing'}"
        )
    if tuple(map(mentioned, say)) != request.say:
        return f"what the call says in thread {request.thread!r} is not what it mentions"
    if request.frame is None and frame.hash != request.frame_hash:
        return f"the frame of thread {request.thread!r} hashes to {frame.hash}, not to {request.frame_hash}"
    return ""


def check_previous(snapshot: Snapshot, owner: str | None) -> None:
    """Check that a new task of this owner may take over a task's threads.

    Raises:
        InputRejected: The task has another owner.
    """
    if snapshot.owner != owner:
        whose = "nobody" if snapshot.owner is None else "somebody else"
        raise InputRejected(f"task {snapshot.task_id!r} is owned by {whose}; name a task of the same owner")


def previous_of(snapshot: Snapshot) -> Previous:
    """The part of a task that the next task takes over.

    Of a thread and its copies (`main`, `main~2`, `main~3`), which an agent makes where it discards a reply, only the
    newest one with turns is taken, under the thread's name. A copy whose first call failed or was canceled has none:
    the thread that it copies is taken without its last turn, the discarded reply. A number that does not follow from 2
    on is part of the name. A tool call without a result gets the result `UNANSWERED`, since providers refuse a
    conversation without one.
    """
    threads = snapshot.threads
    newest: dict[str, Thread] = {}
    copies: set[str] = set()
    for name, thread in threads.items():
        newest[name] = thread
        for number in count(2):
            if (copy := f"{name}~{number}") not in threads:
                break
            copies.add(copy)
            newest[name] = threads[copy] if threads[copy].said else _without_reply(newest[name])
    taken = {name: _closed(thread) for name, thread in newest.items() if name not in copies}
    return Previous(task_id=snapshot.task_id, threads=taken)


def _without_reply(thread: Thread) -> Thread:
    if not thread.said or not isinstance(thread.said[-1], Reply):
        return thread
    said = thread.said[:-1]
    return thread.changed({"said": said, "hash": hash_after("", said)})


def _closed(thread: Thread) -> Thread:
    last = thread.said[-1] if thread.said else None
    if not isinstance(last, Reply) or not last.tool_calls:
        return thread
    calls: Sequence[Said] = [
        ToolReturn(id=call.id, name=call.name, value=UNANSWERED, failed=True) for call in last.tool_calls
    ]
    return thread.after(calls)
