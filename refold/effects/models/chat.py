"""One model call in a conversation: the recalled conversation in, a `Reply` out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import JsonValue
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from refold.core.chat import Reply, ToolCall, ToolOffer
from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict
from refold.effects.models.conversations import Recalled
from refold.effects.models.messages import complaint_of, messages_of, reply_parts
from refold.effects.models.output import FINAL_RESULT, Expected, Misfit, expected
from refold.effects.models.request import Asked, Show
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
        key: See `Asked`.
        show: See `Asked`.

    Raises:
        Verdict: The model cannot be used, this worker lacks an offered tool, or the answer does not fit.
        Exception: Whatever the provider's client raises; `classify` knows it.
    """
    frame = recalled.frame
    offered = [_definition(offer, tools) for offer in frame.tools]
    name, model = await models.get(frame.model)
    asked = Asked(name, model, frame.settings, key=key, show=show)
    messages = messages_of(recalled.shown, frame.instructions)
    known = {FINAL_RESULT, *(tool.name for tool in offered)}
    if frame.expect is None:
        return _reply(await asked.ask(messages, ModelRequestParameters(function_tools=offered)), asked, known)
    want = expected(frame.expect)
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


def _offered(call: ToolCall, offered: Collection[str]) -> ToolCall:
    """The call; without its arguments if the tool was not offered to the model."""
    if call.name in offered:
        return call
    listed = ", ".join(sorted(set(offered) - {FINAL_RESULT})) or "none"
    return ToolCall(id=call.id, name=call.name, problem=f"no tool {call.name!r} is offered; there are: {listed}")


def _reply(response: ModelResponse, asked: Asked, offered: Collection[str]) -> Reply:
    text, calls, aside = reply_parts(response)
    return Reply(
        text=text,
        tool_calls=tuple(_offered(call, offered) for call in calls),
        stop="tools" if calls else "length" if response.finish_reason == "length" else "end",
        model=asked.called,
        usage=asked.usage,
        aside=aside,
    )


def _answer(want: Expected, response: ModelResponse, asked: Asked, offered: Collection[str]) -> Reply:
    """The reply of a final answer: its value, in place of the text or tool call that carried it."""
    value: JsonValue = want.read(response)
    reply = _reply(response, asked, offered)
    as_call = any(call.name == FINAL_RESULT for call in reply.tool_calls)
    return reply.model_copy(
        update={
            "text": reply.text if as_call else "",
            "tool_calls": (),
            "value": value,
            "stop": "end",
            "aside": tuple(one for one in reply.aside if as_call or "text" not in one),
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
        raise Verdict(Failure(kind=FailureKind.PERMANENT, type="unknown_tool", message=message))
    known = tool.spec.description if tool is not None else ""
    return ToolDefinition(
        name=offer.name,
        description=known if offer.description is None else offer.description,
        parameters_json_schema=offer.parameters or (tool.json_schema if tool is not None else {}),
    )
