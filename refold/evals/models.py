"""Models that are asked anew, as a worker asks them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from refold.core.chat import EMPTY
from refold.core.commands import CallChat, CallLlm
from refold.core.errors import InputRejected
from refold.core.events import ChatResult, CommandFailed, Event, LlmResult
from refold.core.fold.wanted import Perform
from refold.effects.failures.classify import classify
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.client import open_client
from refold.effects.models.conversations import Recalled
from refold.effects.models.model_calls import ModelCalls
from refold.effects.tools import Tool, tools_of
from refold.evals.rerun import AskModel


@asynccontextmanager
async def asking(model: str, functions: Sequence[Callable[..., Any]]) -> AsyncIterator[AskModel]:
    """What asks one model, whichever model a call names.

    Args:
        model: `provider:name`.
        functions: The application's tools, whose descriptions a model is offered. None of them is called.

    Raises:
        InputRejected: The model cannot be used: no such provider, no key, a missing package.
    """
    tools = tools_of(functions)
    http = open_client()
    calls = ModelCalls(model, http)

    async def ask(want: Perform) -> Event:
        try:
            return await _asked(calls, want, model, tools)
        except Verdict as verdict:
            failure = verdict.failure
        except Exception as error:  # noqa: BLE001 - whatever a provider's client raises
            failure = classify(error)
        return CommandFailed(id=want.command.id, invocation_id=want.invocation_id, failure=failure)

    try:
        for why in await calls.unusable([model]):
            raise InputRejected(why)
        yield ask
    finally:
        await calls.close()
        await http.aclose()


async def _asked(calls: ModelCalls, want: Perform, model: str, tools: dict[str, Tool]) -> Event:
    command, key = want.command, f"eval:{want.invocation_id}"
    ids = {"id": command.id, "invocation_id": want.invocation_id}
    if isinstance(command, CallLlm):
        found = await calls.ask(command.model_copy(update={"model": model}), key=key)
        return LlmResult(**ids, value=found.value, model=found.model, usage=found.usage)
    assert isinstance(command, CallChat)
    thread = EMPTY if want.prior is None else want.prior.thread
    frame = (command.frame or thread.frame).model_copy(update={"model": model})
    recalled = Recalled(prior=thread.said, say=command.say, frame=frame, since=command.since)
    return ChatResult(**ids, reply=await calls.converse(recalled, tools, key=key))
