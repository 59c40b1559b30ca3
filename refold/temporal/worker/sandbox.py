"""Temporal's sandbox for skills, without the two costs that skills do not need:

1. Each time a value is encoded or decoded, the SDK asks the workflow for a serialization context: the activity or child
   that the value belongs to. In the sandbox each such call compiles and runs code, a fifth of a worker's time for a
   step. refold's converter uses no context, so the call returns None at once.
2. The SDK imports a workflow's module again for each task, so that tasks share no state. That is most of a waiting
   task's memory and of a short task's time. If a skill's modules are immutable (see `immutable`), all its tasks in one
   worker share one copy. The copy is imported inside the sandbox, so the sandbox's restrictions still apply.
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
"""Modules that skills share with the process: pure ones, and ones that workflow code imports but never calls."""

_NOBODY = StorageDriverStoreContext(target=None)


def sandbox(classes: Iterable[type], tools: Iterable[Callable[..., Any]] = ()) -> WorkflowRunner:
    """The sandbox for skills: a skill that reads a clock or opens a file fails with an error that says so.

    Args:
        classes: The workflow classes; their modules are imported inside the sandbox.
        tools: The tools; their modules are shared with the process, since they may import anything and workflow code
            never calls them.
    """
    inside = {cls.__module__ for cls in classes}
    shared = {spec.function.__module__ for tool in tools if (spec := tool_spec(tool)) is not None} - inside
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH, *sorted(shared))
    return Sandbox(restrictions=restrictions)


@dataclass(frozen=True)
class Sandbox(SandboxedWorkflowRunner):
    """The SDK's sandbox for workers that use refold's data converter.

    Attributes:
        shared: The importers that tasks share, by the name of their workflow's module; None where tasks share none any
            more, because a step imported a module that is not immutable.
    """

    shared: dict[str, _SharedImporter | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See the SDK."""
        if not issubclass(det.defn.cls, SkillWorkflow):
            return _WithoutContexts(super().create_instance(det))
        return _WithoutContexts(_SharingModules(tolerant(det), self.runner_class, self.restrictions, self.shared))


class _PerThread(threading.local, RestrictionContext):
    """The sandbox's flag for running workflow code, one per thread: tasks that share modules use several threads."""


class _SharedImporter(Importer):
    """An importer that tells whether tasks may share its modules, those included that a task imported since."""

    _judged = 0
    _immutable = True

    def immutable(self) -> bool:
        """Whether all modules that were imported inside the sandbox are immutable; shared ones do not count."""
        found = list(self.new_modules.items())  # a copy: a task of another thread may import meanwhile
        if len(found) > self._judged:
            own = [one for name, one in found if name != "__main__" and one is not sys.modules.get(name)]
            self._immutable = all(isinstance(module, RestrictedModule) or is_immutable(module) for module in own)
            self._judged = len(found)
        return self._immutable


class _SharingModules(_Instance):
    """The SDK's workflow instance, which reuses the modules of an earlier task if they are immutable."""

    def __init__(
        self,
        det: WorkflowInstanceDetails,
        runner_class: type[WorkflowRunner],
        restrictions: SandboxRestrictions,
        shared: dict[str, _SharedImporter | None],
    ) -> None:
        self._shared = shared
        super().__init__(det, runner_class, restrictions)

    def _create_instance(self) -> None:
        name = self._workflow_module_name()
        known = self._shared.get(name)
        if known is not None and not known.immutable():
            known = self._shared[name] = None
        importer = known or _SharedImporter(self.importer.restrictions, _PerThread(), workflow_module_name=name)
        self.importer = importer
        super()._create_instance()  # reuses the importer's modules
        if name not in self._shared and importer.immutable():
            self._shared[name] = importer


class _WithoutContexts(Committed):
    def get_serialization_context(self, command_info: object) -> None:
        return None

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        return _NOBODY
