"""A worker's cache of conversations: a model call refers to earlier turns by hash, and they are looked up here.

The cache is optional: on a miss the worker queries the task, and checks the answer against the hashes in the call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import JsonValue
from pydantic_core import to_json

from refold.conversation import INLINE_BYTES, ChatRequest, Conversation, Mention, hash_of_value, mismatch
from refold.core.chat import Frame, Reply, Said, ToolReturn, hash_after
from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict

CONVERSATIONS_BYTES = 64 * 1024 * 1024
"""The size of the cache of turns, in bytes as JSON; the least recently used turns are evicted."""

VALUES_BYTES = 16 * 1024 * 1024
"""The size of the cache of tool results, in bytes as JSON."""

T = TypeVar("T")
AskTask = Callable[[str, int, int], Awaitable[Conversation]]
"""Queries the task for turns of a thread, given its name, the first number and the number after the last."""


class Remembered(Generic[T]):
    """A cache of values by hash, limited by size; the least recently used values are evicted."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._size = 0

    def get(self, hash: str) -> T | None:
        """The value; None if it is not in the cache."""
        found = self._kept.get(hash)
        if found is None:
            return None
        self._kept.move_to_end(hash)
        return found[0]

    def keep(self, hash: str, value: T, size: int) -> None:
        """Add a value, unless it is larger than the whole cache."""
        self.forget(hash)
        if size > self._limit:
            return
        self._kept[hash] = value, size
        self._size += size
        while self._size > self._limit:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone

    def size_of(self, hash: str) -> int:
        """The size of a value; 0 if it is not in the cache."""
        return self._kept[hash][1] if hash in self._kept else 0

    def forget(self, hash: str) -> None:
        """Remove a value, if it is in the cache."""
        _, size = self._kept.pop(hash, (None, 0))
        self._size -= size


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A model call with its conversation in full.

    Attributes:
        prior: The earlier turns, oldest first.
        say: The new turns.
        frame: Instructions, tools and settings of the call.
        since: How many of the oldest turns the model is not shown.
    """

    prior: tuple[Said, ...]
    say: tuple[Said, ...]
    frame: Frame
    since: int

    @property
    def shown(self) -> tuple[Said, ...]:
        """The turns that the model is shown, oldest first."""
        return (*self.prior, *self.say)[self.since :]


class Conversations:
    """One worker's cache of turns and tool results."""

    def __init__(self) -> None:
        self._turns: Remembered[tuple[Said, ...]] = Remembered(CONVERSATIONS_BYTES)
        self._values: Remembered[JsonValue] = Remembered(VALUES_BYTES)
        self._frames: Remembered[Frame] = Remembered(VALUES_BYTES)

    def returned(self, value: JsonValue) -> None:
        """Cache a tool's result, since the next model call is likely to refer to it."""
        size = len(to_json(value))
        if size > INLINE_BYTES // 2:  # a smaller one travels inside the turn, with its tool's name and id
            self._values.keep(hash_of_value(value), value, size)

    async def recall(self, request: ChatRequest, ask: AskTask) -> Recalled:
        """The call with its conversation in full, from the cache or else from the task.

        Raises:
            Verdict: The task's answer does not match the call's hashes.
            Exception: Any exception of `ask`.
        """
        frame = self._frame(request)
        prior = () if not request.prior_len else self._turns.get(request.prior_hash)
        say = self._say(request)
        if frame is None or prior is None or say is None:
            known = () if prior is None else prior
            upto = request.prior_len + len(request.say)
            answer = await ask(request.thread, len(known), upto)
            every = (*known, *answer.said)
            prior, say = every[: request.prior_len], every[request.prior_len :]
            frame = request.frame or answer.frame
            if found := mismatch(request, prior, say, frame):
                raise Verdict(Failure(kind=FailureKind.PERMANENT, type="conversation", message=found))
        self._frames.keep(frame.hash, frame, len(frame.model_dump_json()))
        return Recalled(prior=prior, say=say, frame=frame, since=request.since)

    def heard(self, request: ChatRequest, recalled: Recalled, reply: Reply) -> None:
        """Replace a cached conversation by the same one with the new turns and this reply."""
        new = (*recalled.say, reply)
        turns = (*recalled.prior, *new)
        before = self._turns.size_of(request.prior_hash) or _size(recalled.prior)
        self._turns.forget(request.prior_hash)
        self._turns.keep(hash_after(request.prior_hash, new), turns, before + _size(new))

    def _frame(self, request: ChatRequest) -> Frame | None:
        if request.frame is not None:
            return request.frame
        plain = Frame()
        return plain if request.frame_hash == plain.hash else self._frames.get(request.frame_hash)

    def _say(self, request: ChatRequest) -> tuple[Said, ...] | None:
        found: list[Said] = []
        for one in request.say:
            if not isinstance(one, Mention):
                found.append(one)
                continue
            value = None if one.id is None else self._values.get(one.hash)
            if one.id is None or value is None:
                return None
            found.append(ToolReturn(id=one.id, name=one.name, value=value, failed=one.failed))
        return tuple(found)


def _size(turns: Iterable[Said]) -> int:
    return sum(len(one.model_dump_json()) for one in turns)
