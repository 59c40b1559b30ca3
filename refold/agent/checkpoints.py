"""Checkpoints: a task between two steps of its agent, as a value from which another process can continue.

On Temporal they are not needed: every event is a checkpoint. They are for programs that store tasks themselves, and for
hosts that run one step only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal

from refold.agent.loop import AROUND
from refold.core.authoring.skill import Skill, skill_id
from refold.core.content import Content, as_content
from refold.core.errors import InputRejected, shown
from refold.core.events import RESULT_TYPES, CommandFailed, Event, UserMessage
from refold.core.fold.apply import advance, planned
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, Perform, finished, wanted
from refold.core.values import Value

SCHEMA_VERSION = 1
"""The version of a checkpoint's format."""

Performs = Callable[[Perform], Awaitable[Event]]


class Checkpoint(Value):
    """A task right after one of its agent's steps. Its JSON is little larger than the conversation.

    Attributes:
        schema_version: The version of its format.
        agent: The agent's id.
        position: After which step, `after_model` or `after_tools`; of a loop of your own, `after_` and the step's name.
        cycle_index: In which cycle; 1 is the first of a message.
        task: The task.
    """

    type: Literal["checkpoint"] = "checkpoint"
    schema_version: int = SCHEMA_VERSION
    agent: str
    position: str
    cycle_index: int
    task: Snapshot


def checkpoint_of(agent: Skill, task: Snapshot) -> Checkpoint | None:
    """The checkpoint of a task; None if the task is within a step, waits, is blocked, or has ended."""
    record: Any = task.state
    awaits: list[Any] = record.get("awaits", []) if isinstance(record, dict) else []
    entered = len(awaits) == 1 and not any(id not in task.pending for id in awaits[0]["ids"])
    if task.ended or task.waits or not entered or any(one.blocked for one in task.pending.values()):
        return None
    state = record["args"].get("state", {})
    position = state.get("position", "start")
    if position == "start" or record["step"] in AROUND:
        return None
    return Checkpoint(agent=skill_id(agent), position=position, cycle_index=state.get("cycle", 0), task=task)


def resumed(agent: Skill, checkpoint: Checkpoint) -> Snapshot:
    """The task of a checkpoint, to continue it.

    Raises:
        InputRejected: The checkpoint is another agent's, or of another version of the agent or of the format.
    """
    if checkpoint.schema_version != SCHEMA_VERSION:
        raise InputRejected(
            f"the checkpoint has schema version {checkpoint.schema_version}, and this code reads {SCHEMA_VERSION}"
        )
    if checkpoint.agent != skill_id(agent):
        raise InputRejected(f"the checkpoint is of agent {checkpoint.agent!r}, not of {skill_id(agent)!r}")
    if checkpoint.task.skill_version != agent.options.version:
        raise InputRejected(
            f"the checkpoint was made by version {checkpoint.task.skill_version} of agent {checkpoint.agent!r}; this "
            f"is version {agent.options.version}"
        )
    return checkpoint.task


async def next_checkpoint(
    agent: Skill,
    at: Checkpoint | Snapshot | str | Content,
    perform: Performs,
    *,
    task_id: str = "task",
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Checkpoint | Snapshot:
    """Continue to the next checkpoint; or until the task waits for a person, or has ended.

    Results in the checkpoint are not performed again. A gate or question comes before a checkpoint: pass the answer to
    `advance`, and continue from the snapshot that it returns.

    Args:
        agent: The agent.
        at: Where to continue; a first message begins a task.
        perform: Performs one command, and returns its result or failure as an event, with the ids of the command.
        task_id: The new task's id.
        now: The time. A sleep or a backoff counts as over once nothing else can proceed.

    Raises:
        InputRejected: See `resumed`; or `perform` returned something else than an outcome of its command. The command
            is not performed again.
    """
    if isinstance(at, str | Content):
        message = UserMessage(content=as_content(at))
        task, _ = advance(agent, planned(agent, task_id, now()), message, now())
    else:
        task = resumed(agent, at) if isinstance(at, Checkpoint) else at
    while not (task.ended or task.waits or finished(task)):
        going = list(wanted(task).values())
        if not going:
            return task  # an operator decides
        effect = next((one for one in going if isinstance(one, Perform)), None)
        if effect is not None:
            event, when = await perform(effect), now()
            if not isinstance(event, (CommandFailed, *RESULT_TYPES)):
                raise InputRejected(
                    f"perform returned {shown(event)} for {effect.command.id!r}; it returns the command's outcome as "
                    "an event, such as a ToolResult or a CommandFailed"
                )
        else:
            alarm = min((one for one in going if isinstance(one, Alarm)), key=lambda one: one.due_at)
            event, when = alarm.event, max(alarm.due_at, now())
        task, entry = advance(agent, task, event, when)
        if entry.refused:
            raise InputRejected(f"the task refuses the {event.kind} that came: {entry.refused}")
        if (reached := checkpoint_of(agent, task)) is not None:
            return reached
    return task
