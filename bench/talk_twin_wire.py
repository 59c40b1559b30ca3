"""The values that the hand-written conversation sends: hashes to the model call, replies back."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue
from temporalio import activity

from bench.talk import MODEL, TOOL, Talk, call_id


class Ask(BaseModel):
    """The argument of a model call: the conversation, by its length and hash."""

    turns: int
    hash: str


class Call(BaseModel):
    """A tool call that the model asks for."""

    id: str
    name: str
    args: dict[str, JsonValue]


class Usage(BaseModel):
    """What a model call cost, in tokens."""

    input_tokens: int
    output_tokens: int


class Answer(BaseModel):
    """The model's reply."""

    text: str
    calls: list[Call]
    model: str
    usage: Usage


class Turn(BaseModel):
    """A turn of the conversation, as the workflow keeps it."""

    answer: Answer
    returned: list[str]


class Conversation(BaseModel):
    """The workflow's answer to a worker that does not have the conversation."""

    question: str
    turns: list[Turn]


@activity.defn(name="talk.model")
async def model_call(ask: Ask) -> Answer:
    """Answer from the script."""
    talk, turn = PLAYED[activity.info().workflow_id or ""], ask.turns + 1
    wanted: dict[str, JsonValue] = {"source": turn, "chars": talk.returned_chars}
    calls = [Call(id=call_id(turn), name=TOOL, args=wanted)] if turn <= talk.turns else []
    usage = Usage(input_tokens=20_000, output_tokens=250)
    return Answer(text=talk.said(turn), calls=calls, model=MODEL, usage=usage)


@activity.defn(name="talk.look_up")
async def look_up(args: dict[str, JsonValue]) -> str:
    """A tool result from the script."""
    chars, source = args["chars"], args["source"]
    assert isinstance(chars, int)
    assert isinstance(source, int)
    return Talk(turns=0, said_chars=0, returned_chars=chars).returned(source)


PLAYED: dict[str, Talk] = {}
"""The plan by workflow id: the script needs to know it, and a real model would not."""
