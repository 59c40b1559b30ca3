"""The values that the hand-written workflow sends and stores: of its activity, its start, its status and its result.

The workflow passes this module through the sandbox, as Temporal advises for models.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, JsonValue
from temporalio import activity

from bench import script


class Ask(BaseModel):
    """The argument of a model call."""

    prompt: str
    input: str
    expect: str | None = None


class Usage(BaseModel):
    """What a model call cost, in tokens."""

    input_tokens: int
    output_tokens: int


class Answer(BaseModel):
    """The result of a model call."""

    value: JsonValue
    model: str
    usage: Usage


class Said(BaseModel):
    """A message of the conversation."""

    role: Literal["user", "agent"]
    text: str


class Document(BaseModel):
    """A result of the task."""

    name: str
    text: str


class Start(BaseModel):
    """The argument of the workflow."""

    topic: str


class Status(BaseModel):
    """The task as people see it: the answer of the `status` query, and the workflow's result."""

    task_id: str
    status: str
    messages: list[Said]
    artifacts: list[Document]
    waiting_for: str | None = None


@activity.defn(name="model.call")
async def model_call(ask: Ask) -> Answer:
    """Answer from the script."""
    value: JsonValue = script.draft(ask.input) if ask.expect is None else dict(script.verdict(ask.input))
    return Answer(value=value, model="scripted:bench", usage=Usage(input_tokens=250, output_tokens=500))
