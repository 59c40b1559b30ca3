"""Clients call models and tools. They store nothing, and do not know the loop that uses them.

A client's call is a command, which is performed once and recorded. The layers above run again whenever the task is
replayed, and get the recorded result from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import JsonValue

from refold.agent.tools import AgentTool
from refold.core.authoring.context import Ctx, own_patched
from refold.core.chat import Reply, Said, ToolOffer
from refold.core.content import Artifact, Content, Part
from refold.core.events import SkillOutcome
from refold.core.retry_policy import RetryPolicy
from refold.core.steps.calls import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The arguments of a model call.

    Attributes:
        thread: The conversation.
        say: Its new messages.
        instructions: The system prompt.
        tools: The tools that the model may call.
        model: `provider:name`, or several in the order in which they are asked; None is the worker's.
        expect: The type of the final answer; None is text.
        since: How many of the oldest turns are hidden from the model.
        settings: For the provider.
        retry: The retry policy; None is the agent's.
    """

    thread: str
    say: Sequence[Said]
    instructions: str = ""
    tools: Sequence[ToolOffer] = ()
    model: str | Sequence[str] | None = None
    expect: Any = None
    since: int = 0
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    retry: RetryPolicy | None = None


class ModelClient(Protocol):
    """Calls a model."""

    async def ask(self, ctx: Ctx, question: Question) -> Reply:
        """The model's reply.

        Raises:
            CommandError: The call finally failed.
        """
        ...


class ToolClient(Protocol):
    """Calls a tool."""

    async def call(
        self, ctx: Ctx, tool: AgentTool, args: Mapping[str, JsonValue], retry: RetryPolicy | None
    ) -> JsonValue:
        """The tool's result, as JSON.

        Raises:
            CommandError: The call finally failed.
            SkillError: The tool does not accept these arguments.
        """
        ...


class Chat:
    """Calls the model by a chat command: the worker gets the new messages and a hash of the earlier ones."""

    async def ask(self, ctx: Ctx, question: Question) -> Reply:
        """See `ModelClient`."""
        return await ctx.chat(
            "model",
            list(question.say),
            thread=question.thread,
            instructions=question.instructions,
            tools=list(question.tools),
            model=question.model,
            expect=question.expect,
            since=question.since,
            settings=dict(question.settings) or None,
            retry=question.retry,
        )


WHOLE_ARTIFACTS = "refold.step.agent_whole_artifacts"
"""A patch: tasks that were recorded before read of a part's artifact the text or the first data alone, and of an
artifact named `text` in place of the message."""


class Commands:
    """Calls a tool by a tool command, and a skill by a child task."""

    async def call(
        self, ctx: Ctx, tool: AgentTool, args: Mapping[str, JsonValue], retry: RetryPolicy | None
    ) -> JsonValue:
        """See `ToolClient`. The result of a skill's task is its last message, with its artifacts by name if it has any.

        An artifact named `text` is `artifact text`, since the message is `text`.
        """
        came: JsonValue = await Call(tool.command(args, retry), Any)
        if tool.skill is None:
            return came
        outcome = SkillOutcome.model_validate(came)
        if not outcome.artifacts:
            return outcome.text
        named = {f"artifact {one.name}" if one.name == "text" else one.name: one for one in outcome.artifacts}
        whole = {"text": outcome.text, **{name: _value_of(one) for name, one in named.items()}}
        handed = {one.name: one.text or Content(parts=one.parts).data for one in outcome.artifacts}
        before: JsonValue = {"text": outcome.text, **handed}
        return whole if whole == before or own_patched(ctx, WHOLE_ARTIFACTS) else before


def _value_of(artifact: Artifact) -> JsonValue:
    """What a model reads of an artifact: its text, its data, its file's name, or a list of them."""
    if all(part.text is not None for part in artifact.parts):
        return artifact.text
    values = [_value_in(part, artifact.name) for part in artifact.parts]
    return values[0] if len(values) == 1 else values


def _value_in(part: Part, artifact: str) -> JsonValue:
    if part.text is not None:
        return part.text
    if part.data is not None:
        return part.data
    file: dict[str, JsonValue] = {"file": part.filename or part.url or artifact}
    return file if part.media_type is None else {**file, "media_type": part.media_type}
