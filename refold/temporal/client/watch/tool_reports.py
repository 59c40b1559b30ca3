"""Reads what running tools report of their progress from their activities' heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pydantic import ValidationError
from temporalio.client import WorkflowExecutionDescription

from refold.engine import Progress
from refold.temporal.client.watch.tries import attempt_of
from refold.temporal.data.wire import TOOL_ACTIVITIES


async def reports_of(description: WorkflowExecutionDescription, retries: Mapping[str, int]) -> tuple[Progress, ...]:
    """The newest report of each of a task's running tools; `retries` as for `attempt_of`."""
    found = []
    for call in description.raw_description.pending_activities:
        if call.activity_type.name.startswith(TOOL_ACTIVITIES):
            known = {"invocation_id": call.activity_id, "tool": call.activity_type.name.removeprefix(TOOL_ACTIVITIES)}
            for said in await description.data_converter.decode(call.heartbeat_details.payloads):
                with suppress(TypeError, ValidationError):  # a tool may send heartbeats of its own, with any details
                    report = Progress.model_validate({**said, **known})
                    attempt = attempt_of(report.attempt, retries.get(call.activity_id, 0))
                    found.append(report.changed({"attempt": attempt}))
    return tuple(found)
