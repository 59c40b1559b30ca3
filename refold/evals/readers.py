"""Tools that only read, called where the record has no answer, as a worker calls them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.tool import tool_spec
from refold.core.commands import CallTool, EffectPolicy
from refold.core.fold.wanted import Perform
from refold.effects.http.client import HttpClient, open_client
from refold.effects.http.keys import wire_key
from refold.effects.invocation import Invocation, as_current
from refold.evals.rerun import CallReader
from refold.testing.answers import Answers, as_json


@asynccontextmanager
async def reading(functions: Sequence[Callable[..., Any]], task_id: str) -> AsyncIterator[dict[str, CallReader]]:
    """The read-only tools among an application's, by name. No other tool is at hand here, so none can be called.

    Args:
        functions: The application's tools.
        task_id: The task that the calls are for.
    """
    http = open_client()
    specs = [(function, spec) for function in functions if (spec := tool_spec(function)) is not None]
    try:
        yield {
            spec.name: _reader(function, task_id, http)
            for function, spec in specs
            if spec.effect is EffectPolicy.READ_ONLY
        }
    finally:
        await http.aclose()


def _reader(function: Callable[..., Any], task_id: str, http: HttpClient) -> CallReader:
    answers = Answers(tools=[function])

    async def read(want: Perform) -> JsonValue | Exception:
        command = want.command
        assert isinstance(command, CallTool)
        call = Invocation(
            task_id=task_id,
            invocation_id=want.invocation_id,
            idempotency_key=wire_key(namespace="eval", tool=command.name, key=want.invocation_id),
            attempt=want.attempt,
            http=http,
        )
        try:
            with as_current(call):
                answer = await asyncio.to_thread(answers.give, command)  # in a thread, `current()` is the same call
                answer = await answer if asyncio.iscoroutine(answer) else answer
            return answer if isinstance(answer, Exception) else as_json(command, answer)
        except Exception as error:  # noqa: BLE001 - an assertion in a tool is that tool's failure, as on a worker
            return error

    return read
