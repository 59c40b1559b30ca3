"""Tools that only read, called where the record has no answer, as a worker calls them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from refold.core.authoring.tool import tool_spec
from refold.core.commands import CallTool, EffectPolicy
from refold.core.events import CommandFailed, Event, ToolResult
from refold.core.fold.wanted import Perform
from refold.effects.failures.classify import classify
from refold.effects.http.client import HttpClient, open_client
from refold.effects.http.keys import wire_key
from refold.effects.invocation import Invocation, as_current
from refold.effects.tools import Tool, tools_of
from refold.evals.rerun import CallReader


@asynccontextmanager
async def reading(functions: Sequence[Callable[..., Any]], task_id: str) -> AsyncIterator[dict[str, CallReader]]:
    """The read-only tools among an application's, by name. No other tool is at hand here, so none can be called.

    Args:
        functions: The application's tools.
        task_id: The task that the calls are for.
    """
    http = open_client()
    only_read = [one for one in functions if (spec := tool_spec(one)) and spec.effect is EffectPolicy.READ_ONLY]
    try:
        yield {name: _reader(tool, task_id, http) for name, tool in tools_of(only_read).items()}
    finally:
        await http.aclose()


def _reader(tool: Tool, task_id: str, http: HttpClient) -> CallReader:
    async def read(want: Perform) -> Event:
        command, id = want.command, want.invocation_id
        assert isinstance(command, CallTool)
        call = Invocation(
            task_id=task_id,
            invocation_id=id,
            idempotency_key=wire_key(namespace="eval", tool=command.name, key=id),
            attempt=want.attempt,
            http=http,
        )
        try:
            with as_current(call):
                # In a thread, `current()` is the same call.
                answer = await asyncio.to_thread(tool.spec.function, **tool.given(command))
                answer = await answer if inspect.isawaitable(answer) else answer
                return ToolResult(id=command.id, invocation_id=id, value=tool.as_json(answer))
        except Exception as error:  # noqa: BLE001 - an assertion in a tool is that tool's failure, as on a worker
            return CommandFailed(id=command.id, invocation_id=id, failure=classify(error))

    return read
