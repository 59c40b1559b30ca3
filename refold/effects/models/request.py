"""One request to a model: settings, the answer whole or streamed, and its usage."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, cast

from pydantic import JsonValue
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from refold.core.chat import FIRST_TOKEN, WHOLE_CALL, Usage, unfit_time
from refold.core.retry_policy import Failure
from refold.core.values import encodable
from refold.cost import OWNER_DAY, RATE, unfit_rate
from refold.effects.failures.building import permanent, transient
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.keys import key_at, nth
from refold.effects.models.content.messages import PARAGRAPH
from refold.effects.models.output import FINAL_RESULT, OUTPUT_MODE
from refold.effects.models.owner_day import PAID
from refold.effects.models.provider_tools import PROVIDER_TOOLS, provider_tools
from refold.effects.models.trouble import OVERFULL, UPDATE, end_of, failure_of, finish_reason_of
from refold.effects.tracing import instrument

KEY_HEADER = "Idempotency-Key"

MOST_PAUSES = 10
"""How often a provider may pause one answer."""


class Show(Protocol):
    """Receives a streamed answer piece by piece."""

    def text(self, piece: str) -> None:
        """The next piece of the text or of the expected value."""

    def call(self, number: int, tool: str, piece: str) -> None:
        """The next piece of a tool call's arguments, as JSON text.

        Args:
            number: The position of the tool call in the answer, from 0.
            tool: The tool's name.
            piece: The new text; may be empty at the start of a call.
        """


class ModelRequests:
    """The requests of one model call: the first one, and another if its answer does not fit.

    Attributes:
        responses: The responses, oldest first.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        settings: Mapping[str, JsonValue],
        *,
        key: str,
        show: Show | None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Ask nothing yet.

        Args:
            name: The model's name, `provider:model`.
            model: The model.
            settings: Settings for the provider.
            key: The call's, from which `key_at` makes its key at this model: sent as `Idempotency-Key`, so that a
                provider that supports it repeats its answer to a repeated call.
            show: Receives the streamed answer, of several answers the first; None asks for the whole answer at once.
            names: The offered tools' own names, by the names that the model is given.

        Raises:
            Verdict: The settings give a price or a limit that is none, or tools that the provider does not have.
        """
        self.name = name
        self._names = names or {}
        self.responses: list[ModelResponse] = []
        self._model, self._given, self._key, self._show = model, settings, key_at(key, name), show
        self._rate = _rate(settings, name)
        self._first_s = _first_token_s(settings)
        self._provider_tools = provider_tools(settings, name, model)

    async def ask(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters | None = None
    ) -> ModelResponse:
        """Make one request, and further ones while the provider pauses its answer, as for tools of its own.

        Only the first answer is shown: another one would continue it, and what was shown cannot be taken back.

        Raises:
            Verdict: A request failed, or the answer is stopped by a filter, cut off by a limit, has no end, lacks its
                call, or is made in the background.
        """
        show = _Unseen() if self._show is not None and self.responses else self._show
        pieces = None if show is None else _Pieces(show, self._names)
        response = await self._once(messages, parameters, pieces)
        pauses = 0
        # A delay is that of a job in the background, which would be asked about, not continued.
        while response.state == "suspended" and self._model.continuation_delay(response) is None:
            pauses += 1
            if pauses > MOST_PAUSES:
                message = f"model {self.name!r} paused its answer {pauses} times, and has not ended it"
                raise self._failed(permanent("paused", message))
            newer = await self._once([*messages, response], parameters, pieces)
            response = replace(
                newer,
                parts=[*response.parts, *newer.parts],
                provider_details={**(response.provider_details or {}), **(newer.provider_details or {})},
            )
        if response.state == "suspended" and not self._is_cut(response):
            raise await self._in_background(response)
        return self._whole(response)

    async def _in_background(self, response: ModelResponse) -> Verdict:
        with suppress(Exception):  # whatever becomes of the job, its answer is not awaited
            await self._model.cancel_suspended_response(response)
        message = (
            f"model {self.name!r} makes its answer in the background, and a call waits for no such answer; leave out "
            "the setting openai_background"
        )
        return self._failed(permanent("configuration", message))

    async def _once(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters | None, pieces: _Pieces | None
    ) -> ModelResponse:
        settings = _settings(self._given, self._model, nth(self._key, len(self.responses) + 1))
        asked = replace(parameters or _TEXT, native_tools=self._provider_tools)
        try:
            response = await _request(self._model, messages, settings, asked, pieces, self._first_s)
        except _Silent:
            message = f"model {self.name!r} sent nothing for {self._first_s:g} s (settings: {FIRST_TOKEN})"
            raise self._failed(transient("timeout", message)) from None
        except Exception as error:
            raise self._failed(failure_of(error, self.name, messages)) from error
        _name_once(response.tool_calls, {*self._names, FINAL_RESULT})
        used = response.usage
        used.cache_read_tokens = min(used.cache_read_tokens, used.input_tokens)  # some servers count more; see `_usd`
        known = replace(response, parts=[part for part in response.parts if not _is_unknown(part)])
        self.responses.append(known)
        PAID.get()(self.usage)
        if response.parts and not known.parts and response.finish_reason == "stop" and response.state != "suspended":
            message = (
                f"model {self.name!r} answered with nothing but a kind of block that the installed client of its "
                f"provider does not know; {UPDATE}"
            )
            raise self._failed(transient("empty_answer", message))
        return known

    def _whole(self, response: ModelResponse) -> ModelResponse:
        match finish_reason_of(response):
            case "content_filter":
                message = f"model {self.name!r} refused, or its filter stopped the answer"
                raise self._failed(permanent("content_filter", message))
            case "length" if end_of(response) in OVERFULL:
                message = (
                    f"model {self.name!r} filled its context window, so its answer is cut off; shorten the "
                    "conversation, or name a model with a larger window"
                )
                raise self._failed(permanent("context_window", message))
            case "length":
                raise self._failed(permanent("length", self._cut(response)))
            case "error":
                raise self._failed(
                    transient("stream_broken", f"model {self.name!r} broke off its answer with an error")
                )
            case "tool_call" if not (response.text or response.tool_calls or response.native_tool_calls):
                message = f"model {self.name!r} said that it calls a tool, and its answer has no call that can be read"
                raise self._failed(transient("empty_answer", message))
            case None if self._is_cut(response):
                message = f"model {self.name!r} ended its answer without saying why, so it is cut off"
                raise self._failed(transient("stream_broken", message))
            case _:
                return response

    def _is_cut(self, response: ModelResponse) -> bool:
        # pydantic-ai has the provider's own reason in the details, also one that it does not know; a script has none.
        return "finish_reason" not in (response.provider_details or {}) and self._model.system != "function"

    def _cut(self, response: ModelResponse) -> str:
        wrote = f" after {response.usage.output_tokens} tokens" if response.usage.output_tokens else ""
        return (
            f"model {self.name!r} reached its limit of output tokens{wrote}, so its answer is cut off; raise the "
            'limit, settings={"max_tokens": ...}, or ask for less'
        )

    def _failed(self, failure: Failure) -> Verdict:
        """A failure, with the tokens that were paid for."""
        if not self.responses:
            return Verdict(failure)
        known = failure.details if isinstance(failure.details, dict) else {}
        paid = {"usage": self.usage.model_dump(mode="json"), "model": self.called}
        return Verdict(failure.model_copy(update={"details": {**known, **paid}}))

    def misfit(self, found: Exception) -> Verdict:
        """The failure for a second answer that does not fit."""
        return self._failed(permanent("decode", f"model {self.name!r}, asked twice: {found}"))

    @property
    def called(self) -> str:
        """`provider:model`, with the model's name from the response: the provider resolves aliases there."""
        provider, named = self.name.partition(":")[0], self.responses[-1].model_name
        return f"{provider}:{named}" if named else self.name

    @property
    def usage(self) -> Usage:
        """The tokens and cost of all requests together."""
        taken = sum(response.usage.input_tokens for response in self.responses)
        given = sum(response.usage.output_tokens for response in self.responses)
        unmeasured = sum(map(_is_unmeasured, self.responses))
        rate, usd = self._rate, None
        if not unmeasured:
            usd = _usd(self.responses) if rate is None else (taken * rate[0] + given * rate[1]) / 1_000_000
        return Usage(
            input_tokens=taken,
            output_tokens=given,
            requests=len(self.responses),
            usd=usd,
            cached_tokens=sum(response.usage.cache_read_tokens for response in self.responses),
            reasoning_tokens=sum(response.usage.details.get("reasoning_tokens") or 0 for response in self.responses),
            unmeasured=unmeasured,
        )


def _is_unknown(part: ModelResponsePart) -> bool:
    """Whether the provider's client does not know this kind of block: Anthropic's turns it into a text part whose
    content is None; a stream leaves it out."""
    return isinstance(part, TextPart) and not isinstance(part.content, str)


def _name_once(calls: Iterable[ToolCallPart], offered: Collection[str]) -> None:
    """Read each tool's name once: some servers send it with each piece of a streamed call, and pydantic-ai joins the
    pieces."""
    for call in calls:
        said = call.tool_name
        if said and said not in offered:
            joined = (name for name in offered if said == name * (len(said) // len(name)))
            call.tool_name = max(joined, key=len, default=said)  # an offered name may be another one, repeated


def _rate(given: Mapping[str, JsonValue], model: str) -> tuple[float, float] | None:
    """What a million tokens of a model's input and output cost, if the settings say so; else the price list does.

    Raises:
        Verdict: The setting is no price.
    """
    rate = given.get(RATE)
    if wrong := unfit_rate(rate):
        raise Verdict(permanent("configuration", f"settings: {wrong}"))
    if isinstance(rate, dict) and any(":" in name for name in rate):
        rate = rate.get(model)
    price = cast("dict[str, float] | None", rate)
    return None if price is None else (float(price["input"]), float(price["output"]))


def _is_unmeasured(response: ModelResponse) -> bool:
    """Whether a response has no count of tokens: no usage, or one of zeros, as some servers send it."""
    used = response.usage
    return bool(used.unmeasured_requests) or not (used.input_tokens or used.output_tokens)


def _usd(responses: Sequence[ModelResponse]) -> float | None:
    try:
        return sum(float(response.cost().total_price) for response in responses)
    except (AssertionError, LookupError, ValueError):  # a model without a name or price, or counts that do not add up
        return None


_TEXT = ModelRequestParameters()
_OWN = (OUTPUT_MODE, FIRST_TOKEN, PROVIDER_TOOLS, RATE, OWNER_DAY)
"""Settings that the provider does not get."""


class _Silent(Exception):
    """The model has sent nothing within the limit to the first token."""


async def _request(
    model: Model,
    messages: Sequence[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    pieces: _Pieces | None,
    first_s: float | None,
) -> ModelResponse:
    if pieces is None and first_s is None:
        return await model_request(
            model,
            messages,
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=instrument(),
        )
    begun = False
    if pieces is not None:
        pieces.begin_request()
    try:
        async with (
            asyncio.timeout(first_s) as silence,
            model_request_stream(
                model,
                messages,
                model_settings=settings,
                model_request_parameters=parameters,
                instrument=instrument(),
            ) as stream,
        ):
            _as_it_came(stream)
            async for event in stream:
                if not begun:
                    begun = True
                    silence.reschedule(None)
                if pieces is not None:
                    pieces.take(event)
            return stream.get()
    except TimeoutError:
        if begun or first_s is None:
            raise
        raise _Silent from None


def _as_it_came(stream: object) -> None:
    """Take the newest usage of a stream, not the sum, and no reason for its end that the server has not given.

    Some servers repeat the usage with every piece. pydantic-ai has a setting for that, which also asks the server for
    it, and OpenAI refuses the question. A stream without a reason was cut, except Snowflake's, which never has one.
    """
    openai = sys.modules.get("pydantic_ai.models.openai")  # loaded where a model needs it: it takes as long as all else
    if openai is not None and isinstance(stream, openai.OpenAIStreamedResponse):
        stream._model_settings = {**(stream._model_settings or {}), "openai_continuous_usage_stats": True}
        if stream.provider_name != "snowflake":
            stream._missing_finish_reason = lambda: None


class _Unseen:
    """Shows nothing of an answer that is streamed all the same."""

    def text(self, piece: str) -> None:
        """See `Show`."""

    def call(self, number: int, tool: str, piece: str) -> None:
        """See `Show`."""


class _Pieces:
    """Shows an answer as it streams, in one request or several; a call of `FINAL_RESULT` is shown as its text."""

    def __init__(self, show: Show, names: Mapping[str, str]) -> None:
        self._show, self._names = show, names
        self._calls: dict[int, tuple[int, str]] = {}
        self._made = 0
        self._has_text = self._is_text = False

    def begin_request(self) -> None:
        """The parts of the next request are numbered anew."""
        self._calls = {}

    def take(self, event: object) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=str(piece))):
                self.begin_text(piece)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=str(piece))):
                self.text(piece)
            case PartStartEvent(index=index, part=ToolCallPart() as call):
                self.begin_call(index, call.tool_name, call.args if isinstance(call.args, str) else "")
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(piece))) if index in self._calls:
                self.add(index, piece)
            case PartStartEvent():
                self._is_text = False
            case _:  # also the arguments of a call that the provider makes by itself
                pass

    def begin_text(self, piece: str) -> None:
        gap = PARAGRAPH if self._has_text and not self._is_text else ""
        self._has_text = self._is_text = True
        self.text(gap + piece)

    def text(self, piece: str) -> None:
        self._show.text(encodable(piece))

    def begin_call(self, index: int, tool: str, piece: str) -> None:
        self._calls[index] = self._made, tool
        self._made += 1
        if tool == FINAL_RESULT:
            self.begin_text(piece)
        else:
            self._is_text = False
            self.add(index, piece)

    def add(self, index: int, piece: str) -> None:
        number, tool = self._calls[index]
        if tool == FINAL_RESULT:
            self.text(piece)
        else:
            self._show.call(number, self._names.get(tool, encodable(tool)), encodable(piece))


def _first_token_s(given: Mapping[str, JsonValue]) -> float | None:
    """The limit to the first token; None without one.

    Raises:
        Verdict: It is no positive number, or the limit of the whole request is none.
    """
    for name in (FIRST_TOKEN, WHOLE_CALL):
        if wrong := unfit_time(name, given.get(name)):
            raise Verdict(permanent("configuration", f"settings: {wrong}"))
    return cast("float | None", given.get(FIRST_TOKEN))


def _settings(given: Mapping[str, JsonValue], model: Model, key: str) -> ModelSettings:
    """The given settings, with the idempotency key as a header and the provider SDK's retries off: the task retries.

    The clients apply `timeout` to each read; pydantic-ai applies `request_timeout` to the whole request.
    Header and retries are left out if the model's client does not support them: pydantic-ai would warn.
    """
    settings = {name: value for name, value in given.items() if name not in _OWN}
    if (limit := settings.get(WHOLE_CALL)) is not None:
        settings.setdefault("request_timeout", limit)
    headers = settings.pop("extra_headers", None)
    ours = {
        "max_retries": 0,
        "extra_headers": {**(headers if isinstance(headers, dict) else {}), KEY_HEADER: key},
    }
    kept = {name: value for name, value in ours.items() if name not in model.unsupported_settings}
    return cast("ModelSettings", {**settings, **kept})
