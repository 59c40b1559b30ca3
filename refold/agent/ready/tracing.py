"""Middleware that traces every call, in the worker that makes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from refold.agent.middleware import Proceed, Scope, Simple
from refold.middleware import ActivityTurn


class Tracer(Protocol):
    """Any OpenTelemetry tracer fits: `opentelemetry.trace.get_tracer("my-agents")`."""

    def start_as_current_span(self, name: str, *, attributes: Mapping[str, str | int]) -> AbstractContextManager[Any]:
        """A span while the block is open; an exception that leaves the block is recorded in the span."""
        ...


@dataclass(frozen=True)
class Spans(Simple):
    """A span for each attempt of a model call and of a tool call, with the ids that the journal has.

    Attributes:
        tracer: Receives the spans.
    """

    streams = True  # what the model answers stays as it is
    tracer: Tracer
    steps: Collection[str] = ("model", "tool")
    scope: Scope = "activity"

    async def around(self, turn: ActivityTurn, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        tool = getattr(turn.command, "name", None)
        attributes: dict[str, str | int] = {
            "refold.task_id": turn.task_id,
            "refold.invocation_id": turn.invocation_id,
            "refold.attempt": turn.attempt,
        }
        with self.tracer.start_as_current_span(f"tool {tool}" if tool else "model", attributes=attributes):
            return await proceed(turn)
