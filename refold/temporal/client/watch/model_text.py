"""Reads the text of running model calls from their activities' heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from temporalio.client import WorkflowExecutionDescription

from refold.temporal.client.watch.tries import attempt_of
from refold.temporal.data.wire import CHAT_ACTIVITY, LLM_ACTIVITY

TextPlace: TypeAlias = tuple[str, int | None]
"""A model call's invocation id, and the number of a tool call in its answer; None means the answer's text."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """The end of a model's answer so far, and the attempt that streamed it.

    The server returns the last heartbeat of a lost attempt until the next attempt has sent one.
    """

    attempt: int
    offset: int
    text: str
    tool: str = ""

    @property
    def end(self) -> int:
        """The length of the answer so far, in characters."""
        return self.offset + len(self.text)


async def model_text_of(
    description: WorkflowExecutionDescription, retries: Mapping[str, int]
) -> dict[TextPlace, ModelText]:
    """The streamed text of a task's running model calls; `retries` as for `attempt_of`."""
    writing: dict[TextPlace, ModelText] = {}
    for call in description.raw_description.pending_activities:
        if call.activity_type.name in (LLM_ACTIVITY, CHAT_ACTIVITY):
            for said in await description.data_converter.decode(call.heartbeat_details.payloads):
                attempt = attempt_of(int(said["attempt"]), retries.get(call.activity_id, 0))
                writing |= _said(call.activity_id, attempt, said)
    return writing


def _said(invocation_id: str, attempt: int, tail: Mapping[str, Any]) -> dict[TextPlace, ModelText]:
    """The contents of a heartbeat: the text, and each tool call's arguments."""
    text = ModelText(attempt=attempt, offset=int(tail["offset"]), text=str(tail["text"]))
    calls: dict[TextPlace, ModelText] = {
        (invocation_id, int(call["number"])): ModelText(
            attempt=attempt, offset=int(call.get("offset", 0)), text=str(call.get("args", "")), tool=str(call["tool"])
        )
        for call in tail.get("calls", ())
    }
    return {(invocation_id, None): text, **calls}
