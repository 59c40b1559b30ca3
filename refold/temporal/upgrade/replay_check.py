"""Whether the code at hand fits what has happened to a task: its history is replayed, which performs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from refold.divergence import DIFFERS
from refold.temporal.data.storage_setting import storage_from_env
from refold.temporal.replay.replaying import only_read
from refold.temporal.replay.stalls import HANGS, hangs, tried_again
from refold.temporal.worker.logs import quiet
from refold.temporal.worker.plugin import RefoldPlugin

_MESSAGE = re.compile(r'message: "((?:[^"\\]|\\.)+)"')
"""A message in what sdk-core says, which names one cause inside the other."""


class ReplayCheck:
    """Replays the histories of these skills' tasks, one at a time, with the storage and codec of the environment.

    Args:
        skills: Skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.

    Raises:
        DefinitionError: A skill or tool is defined wrongly.
        CodecError: The codec is refused.
        StorageUnusable: `REFOLD_STORAGE` names no storage.
    """

    def __init__(self, skills: Sequence[Any], tools: Sequence[Callable[..., Any]] = ()) -> None:
        self._plugin = RefoldPlugin(skills, tools, storage=only_read(storage_from_env()))
        self._replayer = Replayer(workflows=[], plugins=[self._plugin])

    async def why_not(self, history: WorkflowHistory) -> str:
        """Why the code at hand does not fit the history of one run of a task, for people; empty if it fits."""
        with quiet():
            result = await self._replayer.replay_workflow(history, raise_on_replay_failure=False)
            failure = (await tried_again(self._replayer, result)).replay_failure
        if failure is None:
            return ""
        if hangs(failure):
            return HANGS
        if (found := self._plugin.replayed.difference) is not None:
            return f"{DIFFERS}: {found.found}"  # the ways out are others before a deployment
        messages = _MESSAGE.findall(str(failure))
        why = " ".join((messages[-1] if messages else str(failure)).split())
        return f"the code at hand does not fit what has happened: {why}"


def silence_core() -> None:
    """Keep sdk-core from writing what it thinks of a replay to stdout; called before anything is connected."""
    quiet = Runtime(telemetry=TelemetryConfig(logging=None))
    Runtime.set_default(quiet, error_if_already_set=False)
