"""A task whose workflow tasks a test composes itself, in orders that a server takes rarely; the SDK's own instance runs
the workflow. No server, no history."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.worker import WorkflowInstanceDetails
from temporalio.workflow import Info, ParentInfo, _Definition

from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Off
from refold.temporal.recorded.reading import Reader
from refold.temporal.worker.activation.committed import Unsandboxed
from refold.temporal.worker.task.workflow import SkillWorkflow

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
CONVERTER = data_converter(Off())


class Activated:
    """One run of a task, a second further with each workflow task."""

    def __init__(
        self,
        kind: type[SkillWorkflow],
        task_id: str,
        *,
        part_of: str | None = None,
        run_before: str | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.kind, self.task_id, self.run_before, self.number = kind, task_id, run_before, 0
        # The SDK runs a workflow in a thread, with an event loop of its own.
        self.thread = ThreadPoolExecutor(1)
        self.instance = Unsandboxed(reader).create_instance(self._details(part_of))

    def act(self, *jobs: WorkflowActivationJob) -> list[str]:
        """A workflow task with these jobs; returns the kinds of its commands, and a signal's or an activity's name."""
        self.number += 1
        completion = self.activated(3 * self.number, *jobs)
        assert not completion.HasField("failed"), completion.failed.failure.message
        return [_shown(command) for command in completion.successful.commands]

    def activated(
        self, length: int, *jobs: WorkflowActivationJob, replaying: bool = False
    ) -> WorkflowActivationCompletion:
        """An activation with these jobs and a history of this length."""
        activation = WorkflowActivation(run_id="run", history_length=length, is_replaying=replaying, jobs=jobs)
        activation.timestamp.FromDatetime((BEGAN + timedelta(seconds=length // 3)).replace(tzinfo=None))
        return self.thread.submit(self.instance.activate, activation).result()

    def begin(self, start: Any) -> list[str]:
        """The first workflow task."""
        return self.act(self.initialized(start))

    def initialized(self, start: Any) -> WorkflowActivationJob:
        job = WorkflowActivationJob()
        job.initialize_workflow.workflow_type = self.kind.type_name
        job.initialize_workflow.workflow_id = self.task_id
        job.initialize_workflow.arguments.extend(CONVERTER.payload_converter.to_payloads([start]))
        job.initialize_workflow.start_time.FromDatetime(BEGAN.replace(tzinfo=None))
        return job

    def _details(self, part_of: str | None) -> WorkflowInstanceDetails:
        return WorkflowInstanceDetails(
            payload_converter_factory=lambda: CONVERTER.payload_converter,
            failure_converter_class=CONVERTER.failure_converter_class,
            interceptor_classes=[],
            defn=_Definition.must_from_class(self.kind),
            info=self._info(part_of),
            randomness_seed=1,
            extern_functions={"__temporal_assert_local_activity_valid": lambda name: None},
            disable_eager_activity_execution=True,
            worker_level_failure_exception_types=[],
            patch_activation_callback=None,
            last_completion_result=Payloads(),
            last_failure=None,
        )

    def _info(self, part_of: str | None) -> Info:
        parent = None if part_of is None else ParentInfo(namespace="default", run_id="run", workflow_id=part_of)
        return Info(
            attempt=1, continued_run_id=self.run_before, cron_schedule=None, execution_timeout=None,
            first_execution_run_id="run",
            headers={}, namespace="default", original_execution_run_id="run", parent=parent, root=None,
            priority=Priority.default, raw_memo={}, retry_policy=None, run_id="run", run_timeout=None,
            search_attributes={}, start_time=BEGAN, task_queue="queue", task_timeout=timedelta(seconds=10),
            typed_search_attributes=TypedSearchAttributes.empty, workflow_id=self.task_id, workflow_start_time=BEGAN,
            workflow_type=self.kind.type_name,
        )  # fmt: skip


def _shown(command: WorkflowCommand) -> str:
    kind = str(command.WhichOneof("variant"))
    of = getattr(command, kind)
    return " ".join([kind, *(getattr(of, name) for name in ("signal_name", "activity_type") if hasattr(of, name))])


def signaled(name: str, *said: Any) -> WorkflowActivationJob:
    job = WorkflowActivationJob()
    job.signal_workflow.signal_name = name
    job.signal_workflow.input.extend(CONVERTER.payload_converter.to_payloads(said))
    return job


def updated(name: str, *said: Any) -> WorkflowActivationJob:
    job = WorkflowActivationJob()
    job.do_update.id = job.do_update.protocol_instance_id = job.do_update.name = name
    job.do_update.run_validator = True
    job.do_update.input.extend(CONVERTER.payload_converter.to_payloads(said))
    return job


def queried(name: str) -> WorkflowActivationJob:
    """A query that came by itself, and not along with a workflow task."""
    job = WorkflowActivationJob()
    job.query_workflow.query_type, job.query_workflow.query_id = name, "legacy_query"
    return job


def delivered(signal: int, *, failure: str = "") -> WorkflowActivationJob:
    """What came of the signal of this number that the task sent; a failure is named by its type."""
    job = WorkflowActivationJob()
    job.resolve_signal_external_workflow.seq = signal
    if failure:
        job.resolve_signal_external_workflow.failure.message = failure
        job.resolve_signal_external_workflow.failure.application_failure_info.type = failure
    return job


def fired(timer: int) -> WorkflowActivationJob:
    job = WorkflowActivationJob()
    job.fire_timer.seq = timer
    return job


def performed(activity: int, result: Any) -> WorkflowActivationJob:
    """The result of the activity of this number."""
    job = WorkflowActivationJob()
    job.resolve_activity.seq = activity
    job.resolve_activity.result.completed.result.CopyFrom(CONVERTER.payload_converter.to_payload(result))
    return job


def failed(activity: int, type: str, *details: Any) -> WorkflowActivationJob:
    """The failure of the activity of this number."""
    job = WorkflowActivationJob()
    job.resolve_activity.seq = activity
    failure = job.resolve_activity.result.failed.failure
    failure.activity_failure_info.activity_id = "1"
    failure.cause.application_failure_info.type = type
    failure.cause.application_failure_info.non_retryable = True
    payloads = CONVERTER.payload_converter.to_payloads(details)
    failure.cause.application_failure_info.details.payloads.extend(payloads)
    return job


def part_started(number: int) -> WorkflowActivationJob:
    job = WorkflowActivationJob()
    job.resolve_child_workflow_execution_start.seq = number
    job.resolve_child_workflow_execution_start.succeeded.run_id = "run of the part"
    return job


def cancel_requested(reason: str = "by itself") -> WorkflowActivationJob:
    job = WorkflowActivationJob()
    job.cancel_workflow.reason = reason
    return job
