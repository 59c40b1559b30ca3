"""Conversation by reference: a model call contains the new turns, and only a hash of the earlier ones.

Otherwise a task's history would grow with the square of its conversation's length. The worker that performs the call
has the conversation cached under its hash, or queries the task for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field, JsonValue
from pydantic_core import to_json

from refold.core.chat import EMPTY, Frame, Reply, Said, Thread, ToolReturn, UserSaid, hash_after, text_hash
from refold.core.commands import CallChat
from refold.core.errors import InputRejected
from refold.core.fold.snapshot import Snapshot
from refold.core.values import Value, lean

INLINE_BYTES = 512
"""The largest new turn, in bytes, that a model call contains. For a larger turn the call has a hash, since the history
has that turn already, as a message or a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The conversation before a model call.

    Attributes:
        thread: The thread before the call.
        framed: Whether the call's frame is that of the previous call.
    """

    thread: Thread
    framed: bool


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
