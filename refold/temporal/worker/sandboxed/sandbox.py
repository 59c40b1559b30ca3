"""Temporal's sandbox for skills, without the four costs that skills do not need:

1. Each time a value is encoded or decoded, the SDK asks the workflow for a serialization context: the activity or child
   that the value belongs to. In the sandbox each such call compiles and runs code, a fifth of a worker's time for a
   step. `Committed` answers at once.
2. The SDK imports a workflow's module again for each task, so that tasks share no state. That is most of a waiting
   task's memory and of a short task's time. If a skill's modules are immutable (see `immutable`), all its tasks in one
   worker share one copy. The copy is imported inside the sandbox, so the sandbox's restrictions still apply.
   `sharing` does it, with the inside of the SDK's sandbox; where that is made in another way, nothing is shared.
3. The SDK imports every workflow's module once more when a worker is made, to find out whether the sandbox can load it.
   refold has found that out before, when it checked its registrations; a workflow that was loaded is not loaded again.
4. The SDK compiles the lines that enter the sandbox anew for each activation, a tenth of what a step takes within the
   workflow. `sharing` keeps them compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from temporalio.worker import (
    WorkflowInstance,
    WorkflowInstanceDetails,
)
from temporalio.worker.workflow_sandbox import (
    RestrictedWorkflowAccessError,
    SandboxedWorkflowRunner,
    SandboxRestrictions,
)

from refold.core import errors
from refold.core.authoring.tool import tool_spec
from refold.temporal.recorded.reading import Reader
from refold.temporal.worker.activation.committed import Committed, is_task, tolerant

if TYPE_CHECKING:
    from temporalio.workflow import _Definition

SharingModules: Any = None
with contextlib.suppress(ImportError):  # a release of the SDK whose sandbox is made in another way
    from refold.temporal.worker.sandboxed.sharing import SharingModules

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


def forbidden(error: RestrictedWorkflowAccessError) -> str:
    """What the sandbox does not allow, by the name that code has for it."""
    return error.qualified_name.removeprefix("__builtins__.").removesuffix(".__call__")


def _in_a_skill(error: RestrictedWorkflowAccessError) -> str:
    return f"a skill may not use {forbidden(error)}; `refold check` says what to write instead"


# Its own text advises to pass the module through, which is no way out for a skill.
errors.TEXTS[RestrictedWorkflowAccessError] = _in_a_skill


def sandbox(classes: Iterable[type], tools: Iterable[Callable[..., Any]] = ()) -> Sandbox:
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
        shared: The importers that tasks share, by the name of their workflow's module; where tasks share none, the
            first name under which something can change, with its module.
        loaded: The workflow classes that the sandbox has loaded.
        reader: Reads what was recorded of a task that is rebuilt.
    """

    shared: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    loaded: set[type] = field(default_factory=set, init=False, repr=False, compare=False)
    reader: Reader | None = None

    def beside(self, given: SandboxedWorkflowRunner) -> Sandbox:
        """The same sandbox for a worker that has one of its own: its restrictions hold, and what it passes through is
        passed through, as the program's own workflows expect."""
        if given.restrictions == SandboxRestrictions.default and given.runner_class is self.runner_class:
            return self
        passed = given.restrictions.with_passthrough_modules(*self.restrictions.passthrough_modules)
        return replace(self, restrictions=passed, runner_class=given.runner_class)

    def reading(self, reader: Reader) -> Sandbox:
        """The same sandbox for a worker or a replay with this reader."""
        other = replace(self, reader=reader)
        object.__setattr__(other, "shared", self.shared)
        object.__setattr__(other, "loaded", self.loaded)
        return other

    def prepare_workflow(self, defn: _Definition) -> None:
        """See the SDK. Loads a workflow once; one that could not be loaded is tried again."""
        if defn.cls not in self.loaded:
            super().prepare_workflow(defn)
            self.loaded.add(defn.cls)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See the SDK."""
        if SharingModules is None or not is_task(det):
            inner = super().create_instance(tolerant(det))
        else:
            inner = SharingModules(tolerant(det), self.runner_class, self.restrictions, self.shared)
        return cast(WorkflowInstance, Committed(inner, det, self.reader))
