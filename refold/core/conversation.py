"""Conversation by reference: a model call carries what is new, and the hash of what came before.

Histories are kept for ever, so a call that repeated its conversation would make them grow with its square. Whoever
performs the call has the conversation already, under its hash, or asks the task for it.
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
"""What is new and larger than this travels as its hash: it is in the task's history already, as the message or the
result that it was, and would be written there a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What a model call need not carry along.

    Attributes:
        thread: The conversation before the call.
        framed: The call's frame is the one of the call before.
    """

    thread: Thread
    framed: bool


class Mention(Value):
    """A turn that is too large to be written again.

    Attributes:
        hash: Of the turn; of the value alone, where it is what a tool returned.
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
    """A model call as it travels to whoever performs it.

    Attributes:
        thread: The conversation's name.
        prior_len: How many turns came before.
        prior_hash: Their hash.
        say: What is new, in order; what is large is mentioned.
        frame: What the model is told beside it; None where it is as in the thread's call before.
        frame_hash: The frame's hash; left out beside the frame itself.
        since: How many of the oldest turns the model is not shown.
    """

    thread: str = lean("main")
    prior_len: Annotated[int, Ge(0)] = lean(0)
    prior_hash: str = lean("")
    say: tuple[Told, ...] = lean(())
    frame: Frame | None = lean()
    frame_hash: str = lean("")
    since: Annotated[int, Ge(0)] = lean(0)


class Conversation(Value):
    """What a task answers when it is asked for a conversation.

    Attributes:
        frame: The newest frame.
        said: The turns asked for, oldest first.
    """

    frame: Frame
    said: tuple[Said, ...] = lean(())


def request_of(chat: CallChat, prior: Prior) -> ChatRequest:
    """A call as it travels.

    Args:
        chat: With its frame.
        prior: What came before.
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
    """A turn as it travels: itself, or its hash."""
    if len(one.model_dump_json()) <= INLINE_BYTES:
        return one
    if isinstance(one, ToolReturn):
        return Mention(hash=hash_of_value(one.value), id=one.id, name=one.name, failed=one.failed)
    return Mention(hash=hash_after("", [one]))


def hash_of_value(value: JsonValue) -> str:
    """A tool result's hash."""
    return text_hash(to_json(value).decode())


def conversation_of(snapshot: Snapshot, thread: str, since: int = 0, upto: int | None = None) -> Conversation:
    """The turns of a conversation from number `since` on and before number `upto`, counted from 0.

    What the call that is out says is a part of it.

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
    """What of a conversation is not what the call mentions; empty if all is."""
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
