"""Conversations with a model: threads of turns, and the frame of instructions and tools.

A *thread* is a named conversation of one task, stored in the task's snapshot. A completed call adds its own turns and
then the model's reply; a failed call adds nothing. The *frame* holds instructions, tools and settings, and is journaled
only when it changes. `refold/conversation.py` defines how a call refers to earlier turns.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import MinLen
from pydantic import Field, JsonValue, ValidationError

from refold.core.content import Content, Part, as_content, stored
from refold.core.errors import brief
from refold.core.schema import Schema
from refold.core.values import Value, lean


class Usage(Value):
    """What a model call cost.

    Attributes:
        input_tokens: As the provider counts them.
        output_tokens: As the provider counts them.
        requests: How many requests it took.
        usd: In US dollars, by the prices that the worker knows; None where it knows none.
        cached_tokens: How many of the input tokens were read from the provider's cache.
        reasoning_tokens: How many of the output tokens were reasoning.
        unmeasured: How many of the requests the provider gave no count of tokens for; their tokens are in no field.
    """

    input_tokens: int = lean(0)
    output_tokens: int = lean(0)
    requests: int = lean(1)
    usd: float | None = lean()
    cached_tokens: int = lean(0)
    reasoning_tokens: int = lean(0)
    unmeasured: int = lean(0)


def paid_in_vain(details: JsonValue) -> tuple[Usage, str] | None:
    """What an answer of no use cost, by its failure's details, and the model that gave it, empty if they do not say.

    None where they say nothing of a cost: a worker writes both, but the details of other failures are their author's,
    and may hold anything.
    """
    if not isinstance(details, dict) or "usage" not in details:
        return None
    model = details.get("model")
    try:
        return Usage.model_validate(details["usage"]), model if isinstance(model, str) else ""
    except ValidationError:
        return None


class ToolCall(Value):
    """A model's request to call a tool. The skill decides whether to call it.

    Attributes:
        id: The provider's id of the request; its `ToolReturn` has the same id.
        name: The tool's name, as the model says it.
        args: Its arguments by name.
        problem: Why the call is invalid, with empty `args`: no such tool was offered, or its arguments cannot be read.
    """

    id: str
    name: str
    args: dict[str, JsonValue] = lean(factory=dict)
    problem: str = lean("")


class UserSaid(Value):
    """A turn of the user."""

    kind: Literal["user"] = "user"
    content: Content


class ToolReturn(Value):
    """A tool call's outcome, as sent to the model.

    Attributes:
        id: The call's id.
        name: The tool's name.
        value: The tool's result, or its failure, as JSON.
        failed: Whether the call failed or was refused.
    """

    kind: Literal["return"] = "return"
    id: str
    name: str
    value: JsonValue = lean()
    failed: bool = lean(False)


class Reply(Value):
    """A model's reply.

    Attributes:
        text: The reply's text; empty if the model only calls tools, or answers with a value.
        tool_calls: The tool calls that the model requests, in order.
        value: The model's final answer as JSON, if the call has `expect` and this reply is final.
        stop: Why the model stopped: it was done, it waits for tools, or the reply reached the length limit.
        model: `provider:model`, as the provider names it.
        usage: What the call cost.
        files: Files that the model made, in order.
        provider_calls: Calls of the provider's own tools, which it made itself while it replied.
        aside: What the provider wants to be shown again as it came, such as signed reasoning. For nobody else.
    """

    kind: Literal["reply"] = "reply"
    text: str = lean("")
    tool_calls: tuple[ToolCall, ...] = lean(())
    value: JsonValue = lean()
    stop: Literal["end", "tools", "length"] = lean("end")
    model: str = lean("")
    usage: Usage = lean(factory=Usage)
    files: tuple[Part, ...] = lean(())
    provider_calls: tuple[ToolCall, ...] = lean(())
    aside: tuple[dict[str, JsonValue], ...] = lean(())


Said = Annotated[UserSaid | ToolReturn | Reply, Field(discriminator="kind")]


class ToolOffer(Value):
    """A tool that a model may ask for.

    Attributes:
        name: Its name.
        description: For the model; None takes the registered tool's.
        parameters: The JSON schema of its arguments; None takes the registered tool's.
    """

    name: Annotated[str, MinLen(1)]
    description: str | None = lean()
    parameters: dict[str, JsonValue] | None = lean()


class Frame(Value):
    """Instructions, tools and settings of a model call.

    Attributes:
        instructions: The instructions.
        tools: The tools that the model may call.
        model, settings: As in `CallLlm`.
        expect: The type its final answer must fit; None is plain text.
    """

    instructions: str = lean("")
    tools: tuple[ToolOffer, ...] = lean(())
    model: str | None = lean()
    expect: Schema | None = lean()
    settings: dict[str, JsonValue] = lean(factory=dict)

    @property
    def hash(self) -> str:
        """Equal for equal frames."""
        return text_hash(self.model_dump_json())


FIRST_TOKEN, WHOLE_CALL = "first_token_s", "timeout"
"""The settings of a call that limit the time to the first token and the time of the whole request, in seconds."""


def unfit_time(name: str, given: object) -> str:
    """Why such a setting is no limit; empty if it is. None is without limit."""
    if given is None or (isinstance(given, int | float) and given is not True and 0 < given <= sys.float_info.max):
        return ""
    return f"{name}={brief(given)} is no number of seconds above 0"


class Thread(Value):
    """A conversation so far.

    Attributes:
        said: The turns, oldest first.
        hash: The hash of all turns; empty if there are none.
        frame: The frame of the newest call.
        moved: The place of the model that replied last among those of its call; it also gets the results of tools.
    """

    said: tuple[Said, ...] = lean(())
    hash: str = lean("")
    frame: Frame = lean(factory=Frame)
    moved: int = lean(0)

    def after(self, new: Iterable[Said]) -> Thread:
        """The thread with these turns added."""
        added = tuple(new)
        return self.changed({"said": (*self.said, *added), "hash": hash_after(self.hash, added)})


# Values that an import makes are not checked: the first check builds a model, which takes time that a command need not.
EMPTY = Thread.model_construct(frame=Frame.model_construct())
"""A thread without turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The conversation before a model call.

    Attributes:
        thread: The thread before the call.
        framed: Whether the call's frame is that of the previous call.
    """

    thread: Thread
    framed: bool


class Previous(Value):
    """The part of a previous task that the next task takes over.

    Attributes:
        task_id: The previous task's id.
        threads: The previous task's conversations with models, by name.
    """

    task_id: str
    threads: Mapping[str, Thread]


def hash_after(before: str, new: Iterable[Said]) -> str:
    """The hash of a conversation: each turn is hashed together with the hash before it.

    Equal in every process, for values that were read from JSON.
    """
    for one in new:
        before = text_hash(before + one.model_dump_json())
    return before


def as_said(say: str | Content | Said | Sequence[str | Content | Said]) -> tuple[Said, ...]:
    """A skill's `say` argument as turns; text and content become turns of the user."""
    if isinstance(say, str) or not isinstance(say, Sequence):
        say = [say]
    return tuple(
        stored(one, type(one), "a turn")
        if isinstance(one, UserSaid | ToolReturn | Reply)
        else UserSaid(content=as_content(one, "a turn"))
        for one in say
    )


def text_hash(text: str) -> str:
    """128 bits of SHA-256, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
