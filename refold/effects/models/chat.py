"""One model call in a conversation: the recalled conversation in, a `Reply` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from refold.core.chat import Reply, ToolCall, ToolOffer
from refold.core.retry_policy import NO_TOOL, Failure, FailureKind
from refold.effects.failures.verdicts import OTHERS_S, Verdict
from refold.effects.models.content.files import files_in
from refold.effects.models.content.fitting import fit_name, fit_schema
from refold.effects.models.content.messages import complaint_of, messages_of, reply_parts
from refold.effects.models.conversations import Recalled
from refold.effects.models.output import FINAL_RESULT, Expected, Misfit, expected
from refold.effects.models.provider_tools import provider_calls
from refold.effects.models.request import ModelRequests, Show
from refold.effects.models.resolve import Models
from refold.effects.tools import Tool


async def converse(
    recalled: Recalled, models: Models, tools: Mapping[str, Tool], *, key: str, show: Show | None = None
) -> Reply:
    """Make the call.

    If a final answer does not fit the expected type, the model is asked once more and told what was wrong; a second
    misfit is final.

    Args:
        recalled: The conversation and its frame.
        models: The worker's models.
        tools: The registered tools, by name.
        key: See `ModelRequests`.
        show: See `ModelRequests`.

    Raises:
        Verdict: The model cannot be used, this worker lacks an offered tool, or the answer does not fit.
        Exception: Whatever the provider's client raises; `classify` knows it.
    """
    frame = recalled.frame
    offered = [_definition(offer, tools) for offer in frame.tools]
    name, model = await models.get(frame.model)
    said, client = (*recalled.prior, *recalled.say), type(model).__name__
    messages = messages_of(said, frame.instructions, since=recalled.since, system=model.system, client=client)
    settings = frame.settings
    if not offered and (called := _called_in(messages)):
        offered, settings = [_gone(tool) for tool in called], {**settings, "tool_choice": "none"}
    known = {FINAL_RESULT: FINAL_RESULT, **{fit_name(offer.name): offer.name for offer in frame.tools}}
    asked = ModelRequests(name, model, settings, key=key, show=show, names=known)
    if frame.expect is None:
        return _reply(await asked.ask(messages, ModelRequestParameters(function_tools=offered)), asked, known)
    want = expected(frame.expect, frame.settings)
    parameters = want.parameters(offered)
    response = await asked.ask(messages, parameters)
    if not want.answered_by(response):
        return _reply(response, asked, known)
    try:
        return _answer(want, response, asked, known)
    except Misfit as misfit:
        response = await asked.ask(_complaining(messages, misfit), parameters)
        if not want.answered_by(response):
            return _reply(response, asked, known)
        try:
            return _answer(want, response, asked, known)
        except Misfit as again:
            raise asked.misfit(again) from None


def _offered(call: ToolCall, names: Mapping[str, str]) -> ToolCall:
    """The call by the tool's own name; without its arguments if the tool was not offered to the model."""
    if call.name in names:
        return call.model_copy(update={"name": names[call.name]})
    listed = ", ".join(sorted(set(names) - {FINAL_RESULT})) or "none"
    return ToolCall(id=call.id, name=call.name, problem=f"no tool {call.name!r} is offered; there are: {listed}")


def _reply(response: ModelResponse, asked: ModelRequests, names: Mapping[str, str]) -> Reply:
    text, calls, aside = reply_parts(response)
    return Reply(
        text=text,
        tool_calls=tuple(_offered(call, names) for call in calls),
        stop="tools" if calls else "end",
        model=asked.called,
        usage=asked.usage,
        files=files_in(response),
        provider_calls=provider_calls(response),
        aside=aside,
    )


def _answer(want: Expected, response: ModelResponse, asked: ModelRequests, names: Mapping[str, str]) -> Reply:
    """The reply of a final answer: its value, in place of the text or tool call that carried it."""
    value: JsonValue = want.read(response)
    reply = _reply(response, asked, names)
    as_call = any(call.name == FINAL_RESULT for call in reply.tool_calls)
    return reply.model_copy(
        update={
            "text": reply.text if as_call else "",
            "tool_calls": (),
            "value": value,
            "stop": "end",
            "aside": tuple(one for one in reply.aside if "call" not in one and (as_call or "text" not in one)),
        }
    )


def _complaining(messages: list[ModelMessage], misfit: Misfit) -> list[ModelMessage]:
    last = messages[-1]
    if not isinstance(last, ModelRequest):
        return [*messages, ModelRequest(parts=[complaint_of(misfit)])]
    return [*messages[:-1], ModelRequest([*last.parts, complaint_of(misfit)], instructions=last.instructions)]


def _definition(offer: ToolOffer, tools: Mapping[str, Tool]) -> ToolDefinition:
    tool = tools.get(offer.name)
    if offer.parameters is None and tool is None:
        listed = ", ".join(sorted(tools)) or "none"
        message = (
            f"tool {offer.name!r} is offered to the model, and this worker has none of that name; it has: {listed}. "
            "Register it, or offer it in full: ToolOffer(name, description, parameters)"
        )
        raise Verdict(Failure(kind=FailureKind.PERMANENT, type=NO_TOOL, message=message, again_s=OTHERS_S))
    known = tool.spec.description if tool is not None else ""
    schema, strict = fit_schema(offer.parameters or (tool.json_schema if tool is not None else {}))
    return ToolDefinition(
        name=fit_name(offer.name),
        description=known if offer.description is None else offer.description,
        parameters_json_schema=schema,
        strict=None if strict else False,
    )


def _called_in(messages: Sequence[ModelMessage]) -> list[str]:
    """The tools that a conversation calls, in their order."""
    parts = [part for one in messages if isinstance(one, ModelResponse) for part in one.parts]
    return list(dict.fromkeys(part.tool_name for part in parts if isinstance(part, ToolCallPart)))


def _gone(name: str) -> ToolDefinition:
    """A tool of an earlier call: some providers refuse a conversation with calls that defines no tools."""
    return ToolDefinition(name=name, description="Not available any more.", parameters_json_schema=_NO_ARGUMENTS)


_NO_ARGUMENTS = {"type": "object", "properties": {}}
