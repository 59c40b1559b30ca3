"""One request to a model: settings, the answer as a whole or in pieces, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from pydantic import JsonValue
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from refold.core.chat import Usage
from refold.core.retry import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.keys import nth
from refold.effects.models.output import FINAL_RESULT

KEY_HEADER = "Idempotency-Key"


class Show(Protocol):
    """Takes an answer piece by piece, as it comes."""

    def text(self, piece: str) -> None:
        """More of the text, or of the value that was asked for."""

    def call(self, number: int, tool: str, piece: str) -> None:
        """More of a tool call's arguments, as JSON text.

        Args:
            number: Which call of the answer it is, from 0.
            tool: The tool's name.
            piece: What is new; empty where the call has just begun.
        """


class Asked:
    """The requests of one model call: the same question, asked again where an answer cannot be used.

    Attributes:
        responses: What was answered, oldest first.
    """

    def __init__(
        self, name: str, model: Model, settings: Mapping[str, JsonValue], *, key: str, show: Show | None
    ) -> None:
        """Ask nothing yet.

        Args:
            name: What the model goes by.
            model: The model.
            settings: For the provider.
            key: Sent as `Idempotency-Key`, so that a provider which knows such keys answers a repetition from memory.
            show: Takes the answer as it comes; None asks for it as a whole.
        """
        self.name = name
        self.responses: list[ModelResponse] = []
        self._model, self._given, self._key, self._show = model, settings, key, show

    async def ask(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters | None = None
    ) -> ModelResponse:
        """Make one request.

        Raises:
            Verdict: The provider's filter stopped the answer.
            Exception: Whatever the provider's client raises; `classify` knows it.
        """
        settings = _settings(self._given, self._model, nth(self._key, len(self.responses) + 1))
        response = await _request(self._model, messages, settings, parameters or _TEXT, self._show)
        self.responses.append(response)
        if response.finish_reason == "content_filter":
            message = f"model {self.name!r} refused, or its filter stopped the answer"
            raise Verdict(Failure(kind=FailureKind.PERMANENT, type="content_filter", message=message))
        return response

    def misfit(self, found: Exception) -> Verdict:
        """The verdict on a second answer that does not fit."""
        message = f"model {self.name!r}, asked twice: {found}"
        return Verdict(Failure(kind=FailureKind.PERMANENT, type="decode", message=message))

    @property
    def called(self) -> str:
        """`provider:model`, with the model as the provider names it: an alias answers with what it stands for."""
        provider, named = self.name.partition(":")[0], self.responses[-1].model_name
        return f"{provider}:{named}" if named else self.name

    @property
    def usage(self) -> Usage:
        """What all the requests cost."""
        return Usage(
            input_tokens=sum(response.usage.input_tokens for response in self.responses),
            output_tokens=sum(response.usage.output_tokens for response in self.responses),
            requests=len(self.responses),
            usd=_usd(self.responses),
        )


def _usd(responses: Sequence[ModelResponse]) -> float | None:
    try:
        return sum(float(response.cost().total_price) for response in responses)
    except (AssertionError, LookupError, ValueError):  # a model without a name, price or count of tokens
        return None


_TEXT = ModelRequestParameters()


async def _request(
    model: Model,
    messages: Sequence[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    show: Show | None,
) -> ModelResponse:
    if show is None:
        return await model_request(model, messages, model_settings=settings, model_request_parameters=parameters)
    pieces = _Pieces(show)
    async with model_request_stream(
        model, messages, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=str(piece))):
                    show.text(piece)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=str(piece))):
                    show.text(piece)
                case PartStartEvent(index=index, part=ToolCallPart() as call):
                    pieces.begin(index, call.tool_name, call.args if isinstance(call.args, str) else "")
                case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(piece))):
                    pieces.add(index, piece)
                case _:
                    pass
        return stream.get()


class _Pieces:
    """Tool calls as they come: a call of the tool that stands for the final answer is that answer's text."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._calls: dict[int, tuple[int, str]] = {}

    def begin(self, index: int, tool: str, piece: str) -> None:
        self._calls[index] = len(self._calls), tool
        self.add(index, piece)

    def add(self, index: int, piece: str) -> None:
        number, tool = self._calls[index]
        if tool == FINAL_RESULT:
            self._show.text(piece)
        else:
            self._show.call(number, tool, piece)


def _settings(given: Mapping[str, JsonValue], model: Model, key: str) -> ModelSettings:
    """The given settings, the key as a header, and no retries below the task's own.

    What a model's client cannot do is left out: pydantic-ai warns about it otherwise, though nobody asked for it.
    """
    settings = dict(given)
    headers = settings.pop("extra_headers", None)
    ours = {
        "max_retries": 0,
        "extra_headers": {**(headers if isinstance(headers, dict) else {}), KEY_HEADER: key},
    }
    kept = {name: value for name, value in ours.items() if name not in model.unsupported_settings}
    return cast("ModelSettings", {**settings, **kept})
