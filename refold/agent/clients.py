"""Clients: how a model and a tool are reached. They keep nothing, and know nothing of the loop they are used in.

This is the seam of durability: what a client asks for is a command, performed once and recorded. What is above it runs
again whenever the task is driven again, and finds the recorded result here.
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
from refold.core.retry import RetryPolicy
from refold.core.steps.calls import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a model is asked.

    Attributes:
        thread: The conversation.
        say: What is new in it.
        instructions: What the model is to do.
        tools: What it may ask for.
        model: `provider:name`; None is the worker's.
        expect: The type of its final answer; None is text.
        since: How many of the oldest turns it is not shown.
        settings: For the provider.
        retry: How "try later" is tried again; None is the agent's.
    """

    thread: str
    say: Sequence[Said]
    instructions: str = ""
    tools: Sequence[ToolOffer] = ()
    model: str | None = None
    expect: Any = None
    since: int = 0
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    retry: RetryPolicy | None = None


class ModelClient(Protocol):
    """Reaches a model."""

    async def ask(self, ctx: Ctx, question: Question) -> Reply:
        """The model's reply.

        Raises:
            CommandError: It cannot be had.
        """
        ...


class ToolClient(Protocol):
    """Reaches a tool."""

    async def call(
        self, ctx: Ctx, tool: AgentTool, args: Mapping[str, JsonValue], retry: RetryPolicy | None
    ) -> JsonValue:
        """The tool's result, as JSON.

        Raises:
            CommandError: It failed.
            SkillError: It takes no such arguments.
        """
        ...


class Chat:
    """The model by a chat command: what is new and a hash of what came before travel to the worker."""

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
    """A tool by a tool command; a skill by a task of its own."""

    async def call(
        self, ctx: Ctx, tool: AgentTool, args: Mapping[str, JsonValue], retry: RetryPolicy | None
    ) -> JsonValue:
        """See `ToolClient`. Of a skill's task: what it handed over, by name, else what it said last."""
        came: JsonValue = await Call(tool.command(args, retry), Any)
        if tool.skill is None:
            return came
        outcome = SkillOutcome.model_validate(came)
        handed = {one.name: one.text or Content(parts=one.parts).data for one in outcome.artifacts}
        return {"text": outcome.text, **handed} if handed else outcome.text
