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
from refold.core.authoring.context import Ctx
from refold.core.chat import Reply, Said, ToolOffer
from refold.core.content import Content
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


class Commands:
    """Calls a tool by a tool command, and a skill by a child task."""

    async def call(
        self, ctx: Ctx, tool: AgentTool, args: Mapping[str, JsonValue], retry: RetryPolicy | None
    ) -> JsonValue:
        """See `ToolClient`. The result of a skill's task is its artifacts by name, else its last message."""
        came: JsonValue = await Call(tool.command(args, retry), Any)
        if tool.skill is None:
            return came
        outcome = SkillOutcome.model_validate(came)
        handed = {one.name: one.text or Content(parts=one.parts).data for one in outcome.artifacts}
        return {"text": outcome.text, **handed} if handed else outcome.text
