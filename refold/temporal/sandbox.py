"""Temporal's sandbox, without the questions that refold's values need no answer to.

For each step that a value takes on its way (encoded, stored, referred to, and back) the SDK asks the workflow which
activity or child it belongs to, in case a codec or a storage driver wants to know. In the sandbox each such question
compiles and runs code inside: a fifth of what a worker spends on a step. refold's converter asks for none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

if TYPE_CHECKING:
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
    from temporalio.workflow import Info

_NOBODY = StorageDriverStoreContext(target=None)


class Sandbox(SandboxedWorkflowRunner):
    """The SDK's sandbox for workers whose values are written by refold's converter."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See the SDK."""
        return _Instance(super().create_instance(det))


class _Instance(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._inner.activate(act)

    def get_serialization_context(self, command_info: object) -> None:
        return None

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        return _NOBODY

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()
