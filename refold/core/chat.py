"""Conversations with a model: what is said in a thread, and what the model is told beside it.

A *thread* is a named conversation of one task. It lives in the task's snapshot and grows by what a call says and what
the model replies, in this order, once the call has come back; a call that fails leaves it as it was. What the model is
told beside the conversation (instructions, tools and so on) is its *frame*, kept once for as long as it stays the same.
How a call mentions what was said before is in `conversation`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import Field, JsonValue

from refold.core.content import Content, as_content
from refold.core.schema import Schema
from refold.core.values import Value, lean

_HASH_CHARS = 32


class Usage(Value):
    """What a model call cost.

    Attributes:
        input_tokens: As the provider counts them.
        output_tokens: As the provider counts them.
        requests: How many requests it took.
        usd: In US dollars, by the prices that the worker knows; None where it knows none.
    """

    input_tokens: int = lean(0)
    output_tokens: int = lean(0)
    requests: int = lean(1)
    usd: float | None = lean()


class ToolCall(Value):
    """A model wants a tool to be called. Whether it is called is the skill's affair.

    Attributes:
        id: The provider's id of it; what came of it is told under the same one.
        name: The tool's name, as the model says it.
        args: Its arguments by name.
        problem: Why it cannot be called, with `args` empty then: no such tool was offered, or they cannot be read.
    """

    id: str
    name: str
    args: dict[str, JsonValue] = lean(factory=dict)
    problem: str = lean("")


class UserSaid(Value):
    """What the model is told in the user's name."""

    kind: Literal["user"] = "user"
    content: Content


class ToolReturn(Value):
    """What came of a tool call, as the model is told it.

    Attributes:
        id: The call's id.
        name: The tool's name.
        value: Its result, or what it failed with, as JSON.
        failed: It did not do what was asked: it failed, or was refused.
    """

    kind: Literal["return"] = "return"
    id: str
    name: str
    value: JsonValue = lean()
    failed: bool = lean(False)


class Reply(Value):
    """What a model said.

    Attributes:
        text: In words; empty where it only calls tools, or answers with a value.
        tool_calls: What it wants to be called, in order.
        value: Its answer, as JSON, where the call named a type to `expect` and it gave one.
        stop: Why it stopped: it was done, it waits for its tools, or its answer became too long.
        model: `provider:model`, as the provider names it.
        usage: What the call cost.
        aside: What the provider wants to be shown again as it came, such as signed reasoning. For nobody else.
    """

    kind: Literal["reply"] = "reply"
    text: str = lean("")
    tool_calls: tuple[ToolCall, ...] = lean(())
    value: JsonValue = lean()
    stop: Literal["end", "tools", "length"] = lean("end")
    model: str = lean("")
    usage: Usage = lean(factory=Usage)
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
    """What a model is told beside the conversation.

    Attributes:
        instructions: What it is to do.
        tools: What it may ask for.
        model: `provider:name`; None takes the worker's setting.
        expect: The type its final answer must fit; None is plain text.
        settings: Passed on to the provider, for example `{"temperature": 0}`.
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


class Thread(Value):
    """A conversation so far.

    Attributes:
        said: What was said, oldest first.
        hash: Of all that; empty before anything is said.
        frame: What the newest call was told beside it.
    """

    said: tuple[Said, ...] = lean(())
    hash: str = lean("")
    frame: Frame = lean(factory=Frame)

    def after(self, new: Iterable[Said]) -> Thread:
        """The thread with this said, too."""
        added = tuple(new)
        return Thread.trusted(said=(*self.said, *added), hash=hash_after(self.hash, added), frame=self.frame)

    def framed(self, frame: Frame) -> Thread:
        """The thread with another frame."""
        return Thread.trusted(said=self.said, hash=self.hash, frame=frame)


EMPTY = Thread()
"""A thread that nothing was said in."""


def hash_after(before: str, new: Iterable[Said]) -> str:
    """The hash of a conversation: each turn's is made of the one before and of what is said.

    The same wherever it is made, for values that came through JSON.
    """
    for one in new:
        before = text_hash(before + one.model_dump_json())
    return before


def as_reply(outcome: JsonValue) -> Reply:
    """What somebody else gives for a reply: its text, or a reply as data.

    Raises:
        ValidationError: It is neither.
    """
    return Reply(text=outcome) if isinstance(outcome, str) else Reply.model_validate(outcome)


def as_said(say: str | Content | Said | Sequence[str | Content | Said]) -> tuple[Said, ...]:
    """What a skill says, as turns: text and content are said in the user's name."""
    if isinstance(say, str | Content | UserSaid | ToolReturn | Reply):
        say = [say]
    return tuple(
        one.own() if isinstance(one, UserSaid | ToolReturn | Reply) else UserSaid(content=as_content(one, "a turn"))
        for one in say
    )


def as_offer(tool: str | ToolOffer | Callable[..., Any], name_of: Callable[[Callable[..., Any]], str]) -> ToolOffer:
    """What is offered: a tool by name or function is looked up where the call is made.

    Args:
        tool: The tool.
        name_of: Gives the declared name of a function.
    """
    if isinstance(tool, ToolOffer):
        return tool
    return ToolOffer(name=tool if isinstance(tool, str) else name_of(tool))


def text_hash(text: str) -> str:
    """128 bits of SHA-256, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
