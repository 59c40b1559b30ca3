"""Tasks on the worker of a deployment whose program says for each of its workflows what a new version does with it."""

from __future__ import annotations

from dataclasses import replace

from temporalio.common import VersioningBehavior
from temporalio.worker import WorkerConfig

from refold.temporal.worker.workflow import DEFINITION, SkillWorkflow

_UNSAID = (None, VersioningBehavior.UNSPECIFIED)


def pin_tasks(config: WorkerConfig) -> None:
    """Pin tasks to the version that began their run, as refold's own workers do, where the deployment has no default.

    The SDK refuses a workflow that does not say, and a skill has no place to. A default holds for the program's
    workflows, too, so it is set only where each of them says; else the SDK refuses the program's, as without refold.
    """
    deployment = config.get("deployment_config")
    if deployment is None or not deployment.use_worker_versioning:
        return
    if deployment.default_versioning_behavior in _UNSAID and all(map(_says, config.get("workflows") or ())):
        config["deployment_config"] = replace(deployment, default_versioning_behavior=VersioningBehavior.PINNED)


def _says(cls: type) -> bool:
    definition = getattr(cls, DEFINITION, None)
    return (
        issubclass(cls, SkillWorkflow)
        or getattr(definition, "versioning_behavior", None) not in _UNSAID
        or getattr(definition, "dynamic_config_fn", None) is not None
    )
