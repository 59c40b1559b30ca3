"""refold on Temporal: `connect` opens the engine, `workflow_for` makes a workflow, `RefoldPlugin` equips a worker.

Each name is imported on first use, because a skill's module needs only `workflow_for` and the sandbox imports that
module again for each task.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.engine import ScheduleNotFound as ScheduleNotFound
    from refold.engine import ScheduleView as ScheduleView
    from refold.temporal.client.engine import TemporalEngine, connect
    from refold.temporal.dev import DevServerError, dev_server
    from refold.temporal.replay.replaying import Replayed, Replays
    from refold.temporal.replay.sources import Choice, histories
    from refold.temporal.schedules.schedules import ScheduleExists, Schedules
    from refold.temporal.schedules.timing import Overlap, Timing
    from refold.temporal.seen.open_tasks import OpenTasks
    from refold.temporal.seen.runtime import measure
    from refold.temporal.serverless.aws import lambda_handler
    from refold.temporal.serverless.drain import Drained
    from refold.temporal.traced import tracer_of
    from refold.temporal.upgrade.replay_check import silence_core
    from refold.temporal.upgrade.upgrade import Outcome, TaskUpgrade, upgrade_tasks
    from refold.temporal.webhooks.webhooks import TemporalWebhooks
    from refold.temporal.worker.logs import log_to_stderr
    from refold.temporal.worker.plugin import RefoldPlugin
    from refold.temporal.worker.profile import Profile
    from refold.temporal.worker.refusals import known_servers, refusals_at_start
    from refold.temporal.worker.registry import Refusal, workflows_of
    from refold.temporal.worker.run import make_worker, run_worker
    from refold.temporal.worker.task.define import workflow_for

_HOMES = {
    "Choice": "replay.sources",
    "DevServerError": "dev",
    "Drained": "serverless.drain",
    "TaskUpgrade": "upgrade.upgrade",
    "OpenTasks": "seen.open_tasks",
    "Outcome": "upgrade.upgrade",
    "Overlap": "schedules.timing",
    "Profile": "worker.profile",
    "RefoldPlugin": "worker.plugin",
    "Refusal": "worker.registry",
    "Replayed": "replay.replaying",
    "Replays": "replay.replaying",
    "ScheduleExists": "schedules.schedules",
    "ScheduleNotFound": "schedules.schedules",
    "ScheduleView": "schedules.schedules",
    "Schedules": "schedules.schedules",
    "TemporalEngine": "client.engine",
    "TemporalWebhooks": "webhooks.webhooks",
    "Timing": "schedules.timing",
    "connect": "client.engine",
    "dev_server": "dev",
    "histories": "replay.sources",
    "log_to_stderr": "worker.logs",
    "measure": "seen.runtime",
    "make_worker": "worker.run",
    "known_servers": "worker.refusals",
    "lambda_handler": "serverless.aws",
    "refusals_at_start": "worker.refusals",
    "run_worker": "worker.run",
    "silence_core": "upgrade.replay_check",
    "tracer_of": "traced",
    "upgrade_tasks": "upgrade.upgrade",
    "workflow_for": "worker.task.define",
    "workflows_of": "worker.registry",
}

__all__ = [
    "Choice",
    "DevServerError",
    "Drained",
    "OpenTasks",
    "Outcome",
    "Overlap",
    "Profile",
    "RefoldPlugin",
    "Refusal",
    "Replayed",
    "Replays",
    "ScheduleExists",
    "ScheduleNotFound",
    "ScheduleView",
    "Schedules",
    "TaskUpgrade",
    "TemporalEngine",
    "TemporalWebhooks",
    "Timing",
    "connect",
    "dev_server",
    "histories",
    "known_servers",
    "lambda_handler",
    "log_to_stderr",
    "make_worker",
    "measure",
    "refusals_at_start",
    "run_worker",
    "silence_core",
    "tracer_of",
    "upgrade_tasks",
    "workflow_for",
    "workflows_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
