"""One model call: a command in, an outcome out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    UserContent,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from refold.core.chat import Usage
from refold.core.commands import CallLlm
from refold.core.content import Content, Part
from refold.core.events import LlmOutcome
from refold.core.retry import Failure, FailureKind
from refold.effects.keys import nth
from refold.effects.models import Models
from refold.effects.output import Expected, Misfit, expected
from refold.effects.verdicts import Verdict

KEY_HEADER = "Idempotency-Key"
Show = Callable[[str], None]

_TEXT = ModelRequestParameters()


async def ask(command: CallLlm, models: Models, *, key: str, show: Show | None = None) -> LlmOutcome:
    """Make the call.

    An answer that does not fit `expect` is asked for once more, with what was wrong; a second misfit is final.

    Args:
        command: What is asked.
        models: Where the model comes from.
        key: Sent as `Idempotency-Key`, so that a provider which knows such keys answers a repetition from memory.
        show: Takes each piece of the answer as it comes; None asks for the answer as a whole.

    Raises:
        Verdict: The model cannot be used, or its answer does not fit.
        Exception: Whatever the provider's client raises; `classify` knows it.
    """
    name, model = await models.get(command.model)
    want = None if command.expect is None else expected(command.expect)
    spent: list[ModelResponse] = []

    async def once(complaint: str = "") -> ModelResponse:
        settings = _settings(command, model, nth(key, len(spent) + 1))
        response = await _request(model, _messages(command, complaint), settings, want, show)
        spent.append(response)
        if response.finish_reason == "content_filter":
            raise Verdict(_permanent("content_filter", f"model {name!r} refused, or its filter stopped the answer"))
        return response

    response = await once()
    if want is None:
        value = response.text or ""
        return LlmOutcome(value=value, model=_called(name, response), usage=_usage(spent))
    try:
        answer = want.read(response)
    except Misfit as misfit:
        try:
            answer = want.read(await once(str(misfit)))
        except Misfit as again:
            raise Verdict(_permanent("decode", f"model {name!r}, asked twice: {again}")) from None
    return LlmOutcome(value=answer, model=_called(name, response), usage=_usage(spent))


async def _request(
    model: Model, messages: list[ModelRequest], settings: ModelSettings, want: Expected | None, show: Show | None
) -> ModelResponse:
    parameters = _TEXT if want is None else want.parameters()
    if show is None:
        return await model_request(model, messages, model_settings=settings, model_request_parameters=parameters)
    async with model_request_stream(
        model, messages, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=str(piece))):
                    show(piece)
                case PartStartEvent(part=ToolCallPart(args=str(piece))):
                    show(piece)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=str(piece))):
                    show(piece)
                case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=str(piece))):
                    show(piece)
                case _:
                    pass
        return stream.get()


def _messages(command: CallLlm, complaint: str) -> list[ModelRequest]:
    """The prompt as instructions and the input as what the user says; the prompt alone is what the user says."""
    said = command.prompt if command.input is None else _user_content(command.input)
    parts = [UserPromptPart(said)]
    if complaint:
        parts.append(
            UserPromptPart(f"An earlier answer was rejected: {complaint}. Answer again, in the form asked for.")
        )
    instructions = command.prompt if command.input is not None and command.prompt else None
    return [ModelRequest(parts=parts, instructions=instructions)]


def _user_content(content: Content) -> str | list[UserContent]:
    if all(part.text is not None for part in content.parts):
        return content.text
    return [_piece(part) for part in content.parts]


def _piece(part: Part) -> UserContent:
    media = part.media_type or ""
    match part:
        case Part(text=str(text)):
            return text
        case Part(raw=bytes(data)):
            return BinaryContent(data=data, media_type=media or "application/octet-stream")
        case Part(url=str(url)):
            return _file(url, part.media_type)
        case _:
            return json.dumps(part.data, ensure_ascii=False)


def _file(url: str, media_type: str | None) -> UserContent:
    match (media_type or "").partition("/")[0]:
        case "image":
            return ImageUrl(url=url, media_type=media_type)
        case "audio":
            return AudioUrl(url=url, media_type=media_type)
        case "video":
            return VideoUrl(url=url, media_type=media_type)
        case _:
            return DocumentUrl(url=url, media_type=media_type)


def _settings(command: CallLlm, model: Model, key: str) -> ModelSettings:
    """The command's settings, the key as a header, and no retries below the task's own.

    What a model's client cannot do is left out: pydantic-ai warns about it otherwise, though nobody asked for it.
    """
    given = dict(command.settings)
    headers = given.pop("extra_headers", None)
    ours = {
        "max_retries": 0,
        "extra_headers": {**(headers if isinstance(headers, dict) else {}), KEY_HEADER: key},
    }
    kept = {name: value for name, value in ours.items() if name not in model.unsupported_settings}
    return cast("ModelSettings", {**given, **kept})


def _called(name: str, response: ModelResponse) -> str:
    """`provider:model`, with the model as the provider names it: an alias answers with what it stands for."""
    provider = name.partition(":")[0]
    return f"{provider}:{response.model_name}" if response.model_name else name


def _usage(responses: list[ModelResponse]) -> Usage:
    return Usage(
        input_tokens=sum(response.usage.input_tokens for response in responses),
        output_tokens=sum(response.usage.output_tokens for response in responses),
        requests=len(responses),
    )


def _permanent(type: str, message: str) -> Failure:
    return Failure(kind=FailureKind.PERMANENT, type=type, message=message)
