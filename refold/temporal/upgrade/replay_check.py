"""Whether the code at hand fits what has happened to a task: its history is replayed, which performs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from refold.temporal.worker.plugin import RefoldPlugin

_MESSAGE = re.compile(r'message: "((?:[^"\\]|\\.)+)"')
"""A message in what the SDK's core says, which names one cause inside the other."""


def replayer_of(skills: Sequence[Any], tools: Sequence[Callable[..., Any]] = ()) -> Replayer:
    """What replays the histories of these skills' tasks, with the storage and codec of the environment.

    Args:
        skills: Skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.

    Raises:
        DefinitionError: A skill or tool is defined wrongly.
        CodecError: The codec is refused.
    """
    return Replayer(workflows=[], plugins=[RefoldPlugin(skills, tools)])


def silence_core() -> None:
    """Keep the SDK's core from writing what it thinks of a replay to stdout; called before anything is connected."""
    quiet = Runtime(telemetry=TelemetryConfig(logging=None))
    Runtime.set_default(quiet, error_if_already_set=False)


async def replay_check(history: WorkflowHistory, replayer: Replayer) -> str | None:
    """Why the code at hand does not fit a history, for people; None if it fits.

    Args:
        history: Of one run of a task.
        replayer: With the code at hand.
    """
    failure = (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    if failure is None:
        return None
    messages = _MESSAGE.findall(str(failure))
    return " ".join((messages[-1] if messages else str(failure)).split())
