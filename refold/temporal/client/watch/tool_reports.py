"""Reads what running tools report of their progress from their activities' heartbeats."""

from __future__ import annotations

from temporalio.client import WorkflowExecutionDescription

from refold.engine import Progress
from refold.temporal.data.wire import TOOL_ACTIVITIES


async def reports_of(description: WorkflowExecutionDescription) -> tuple[Progress, ...]:
    """The newest report of each of a task's running tools."""
    found = []
    for call in description.raw_description.pending_activities:
        if call.activity_type.name.startswith(TOOL_ACTIVITIES):
            for said in await description.data_converter.decode(call.heartbeat_details.payloads):
                if isinstance(said, dict):
                    tool = call.activity_type.name.removeprefix(TOOL_ACTIVITIES)
                    found.append(Progress(invocation_id=call.activity_id, tool=tool, **said))
    return tuple(found)
