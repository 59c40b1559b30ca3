"""The conversations that a worker remembers: what a model call mentions by its hash is found here, or asked for.

Nothing here is needed: a worker that forgets, or never knew, asks the task. What the task answers is checked against
the hashes that the call was sent with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import JsonValue
from pydantic_core import to_json

from refold.core.chat import Frame, Reply, Said, ToolReturn, hash_after
from refold.core.conversation import INLINE_BYTES, ChatRequest, Conversation, Mention, hash_of_value, mismatch
from refold.core.retry import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict

CONVERSATIONS_BYTES = 64 * 1024 * 1024
"""How much a worker remembers of what was said, as JSON; the ones it used last."""

VALUES_BYTES = 16 * 1024 * 1024
"""How much it remembers of what its tools returned."""

T = TypeVar("T")
AskTask = Callable[[str, int, int], Awaitable[Conversation]]
"""Asks the task for a thread's turns from one number on and before another."""


class Remembered(Generic[T]):
    """Values by their hash, the ones used last, up to a size."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._size = 0

    def get(self, hash: str) -> T | None:
        """The value; None where it is not known, or was forgotten."""
        found = self._kept.get(hash)
        if found is None:
            return None
        self._kept.move_to_end(hash)
        return found[0]

    def keep(self, hash: str, value: T, size: int) -> None:
        """Remember a value. What is larger than all that may be remembered is not."""
        self.forget(hash)
        if size > self._limit:
            return
        self._kept[hash] = value, size
        self._size += size
        while self._size > self._limit:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone

    def size_of(self, hash: str) -> int:
        """How large a value is; 0 where it is not known."""
        return self._kept[hash][1] if hash in self._kept else 0

    def forget(self, hash: str) -> None:
        """Forget a value, if it is known."""
        _, size = self._kept.pop(hash, (None, 0))
        self._size -= size


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """All of a model call.

    Attributes:
        prior: What was said before.
        say: What is new.
        frame: What the model is told beside it.
        since: How many of the oldest turns it is not shown.
    """

    prior: tuple[Said, ...]
    say: tuple[Said, ...]
    frame: Frame
    since: int

    @property
    def shown(self) -> tuple[Said, ...]:
        """What the model is shown, oldest first."""
        return (*self.prior, *self.say)[self.since :]


class Conversations:
    """What one worker remembers."""

    def __init__(self) -> None:
        self._turns: Remembered[tuple[Said, ...]] = Remembered(CONVERSATIONS_BYTES)
        self._values: Remembered[JsonValue] = Remembered(VALUES_BYTES)
        self._frames: Remembered[Frame] = Remembered(VALUES_BYTES)

    def returned(self, value: JsonValue) -> None:
        """Remember what a tool returned: the next call may well mention it."""
        size = len(to_json(value))
        if size > INLINE_BYTES // 2:  # beside its name and id, which a turn holds too
            self._values.keep(hash_of_value(value), value, size)

    async def recall(self, request: ChatRequest, ask: AskTask) -> Recalled:
        """All of a call: from memory, else from the task.

        Raises:
            Verdict: What the task answers is not what the call mentions.
            Exception: Whatever asking raises.
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
        """Remember a conversation as it goes on with this reply, instead of as it was."""
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
