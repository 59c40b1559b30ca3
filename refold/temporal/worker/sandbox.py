"""Temporal's sandbox, at a fraction of its price for skills.

Two things make it dear. Both are left out where they do nothing:

1. For each step that a value takes on its way (encoded, stored, referred to, and back) the SDK asks the workflow which
   activity or child it belongs to, in case a codec or a storage driver wants to know; in the sandbox each question
   compiles and runs code inside, a fifth of what a worker spends on a step. refold's converter asks for none of it.
2. A workflow's module is imported again for each task, so that no task sees what another one left in it: most of what
   a waiting task takes, and of a short one's time. Where nothing in a skill's modules can change (`immutable`), all
   its tasks in one worker share one copy. The copy is still the sandbox's own: what is forbidden inside stays so.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import (
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.worker.workflow_sandbox._importer import Importer
from temporalio.worker.workflow_sandbox._restrictions import RestrictedModule, RestrictionContext
from temporalio.worker.workflow_sandbox._runner import _Instance

from refold.core.authoring.tool import tool_spec
from refold.temporal.worker.committed import Committed, tolerant
from refold.temporal.worker.immutable import is_immutable
from refold.temporal.worker.workflow import SkillWorkflow

PASSED_THROUGH = (
    "refold",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "pydantic_ai",
    "httpx",
    "httpx2",
    "structlog",
)
"""Modules that skills share with the process: pure ones, and ones that a skill's module may import but never calls."""

_NOBODY = StorageDriverStoreContext(target=None)


def sandbox(classes: Iterable[type], tools: Iterable[Callable[..., Any]] = ()) -> WorkflowRunner:
    """The sandbox that skills run in: a skill that reads a clock or opens a file fails with an error that says so.

    Args:
        classes: The workflow classes; their modules stay inside.
        tools: Their modules are shared with the process, since they may import anything and are never called inside.
    """
    inside = {cls.__module__ for cls in classes}
    shared = {spec.function.__module__ for tool in tools if (spec := tool_spec(tool)) is not None} - inside
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH, *sorted(shared))
    return Sandbox(restrictions=restrictions)


@dataclass(frozen=True)
class Sandbox(SandboxedWorkflowRunner):
    """The SDK's sandbox for workers whose values are written by refold's converter.

    Attributes:
        shared: What tasks share, by the module of their workflow.
    """

    shared: dict[str, Importer] = field(default_factory=dict, init=False, repr=False, compare=False)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See the SDK."""
        if not issubclass(det.defn.cls, SkillWorkflow):
            return _WithoutContexts(super().create_instance(det))
        return _WithoutContexts(_SharingModules(tolerant(det), self.runner_class, self.restrictions, self.shared))


class _PerThread(threading.local, RestrictionContext):
    """Whether workflow code is running: in this thread, since tasks that share modules run in several."""


class _SharingModules(_Instance):
    """The SDK's instance, whose modules come from the task before it where they cannot have changed."""

    def __init__(
        self,
        det: WorkflowInstanceDetails,
        runner_class: type[WorkflowRunner],
        restrictions: SandboxRestrictions,
        shared: dict[str, Importer],
    ) -> None:
        self._shared = shared
        super().__init__(det, runner_class, restrictions)

    def _create_instance(self) -> None:
        name = self._workflow_module_name()
        known = self._shared.get(name)
        self.importer = known or Importer(self.importer.restrictions, _PerThread(), workflow_module_name=name)
        super()._create_instance()  # finds what is imported already
        if known is None and _all_immutable(self.importer):
            self._shared[name] = self.importer


def _all_immutable(importer: Importer) -> bool:
    """Whether nothing that was imported inside, and for the sandbox alone, can change."""
    own = [
        module
        for name, module in importer.new_modules.items()
        if name != "__main__" and module is not sys.modules.get(name)
    ]
    return all(isinstance(module, RestrictedModule) or is_immutable(module) for module in own)


class _WithoutContexts(Committed):
    def get_serialization_context(self, command_info: object) -> None:
        return None

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        return _NOBODY
