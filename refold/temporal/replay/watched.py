"""What a replayed workflow does: each command that its code gives, and at the end its journal.

Temporal's replayer says only whether the kinds and ids of the commands fit. So the runner of the workflows is wrapped
here: the commands are kept with all their fields, and before the workflow is forgotten it is asked for its journal.

Uses the messages between the SDK and sdk-core, as `refold.temporal.worker.activation.committed` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import QueryWorkflow, WorkflowActivation, WorkflowActivationJob
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from refold.temporal.data.wire import PAGE_ENTRIES

QUERY_ID = "replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A command of a replayed workflow, or the failure of a whole activation.

    Attributes:
        at: The time of the workflow task, which is the workflow's clock.
        length: The length of the history that the workflow task knew.
        command: The command, as sdk-core gets it; None for a failure.
        failure: Why the workflow task would fail; empty for a command.
    """

    at: datetime
    length: int
    command: Any = None
    failure: str = ""


@dataclass(slots=True)
class Seen:
    """What a replayed workflow did and said.

    Attributes:
        given: Its commands, in order.
        entries: Its journal's entries of this run, as JSON data.
        base: The task before the first of them, as JSON data; None if the workflow could not be asked.
        snapshot: The task after the last of them, as JSON data; likewise.
    """

    given: list[Given] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    base: dict[str, Any] | None = None
    snapshot: dict[str, Any] | None = None


class Watching(WorkflowRunner):
    """A runner whose workflows are watched.

    Args:
        inner: Runs them.
        begun: Called for each workflow with its run id; returns what is filled in.
    """

    def __init__(self, inner: WorkflowRunner, begun: Callable[[str], Seen]) -> None:
        self._inner, self._begun = inner, begun

    def prepare_workflow(self, defn: Any) -> None:
        """See the SDK."""
        self._inner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See the SDK."""
        return _Watched(self._inner.create_instance(det), self._begun(det.info.run_id))

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """See the SDK."""
        self._inner.set_worker_level_failure_exception_types(types)


class _Watched(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance, seen: Seen) -> None:
        self._inner, self._seen = inner, seen
        self._interrupted = False

    def activate(self, act: WorkflowActivation) -> Any:
        # Code that hangs would do so again if it was asked, and the SDK waits for its end.
        if not self._interrupted and any(job.HasField("remove_from_cache") for job in act.jobs):
            self._ask_all(act)
        self._interrupted = True
        completion = self._inner.activate(act)
        self._interrupted = False
        at, length = act.timestamp.ToDatetime(UTC), act.history_length
        if completion.HasField("failed"):
            failure = completion.failed.failure.message
            self._seen.given.append(Given(at=at, length=length, failure=failure))
        # Copied, since the SDK encodes the payloads in place afterwards.
        commands = map(_copy, completion.successful.commands)
        self._seen.given.extend(Given(at=at, length=length, command=command) for command in commands)
        return completion

    def _ask_all(self, act: WorkflowActivation) -> None:
        seen, after = self._seen, 0
        while (page := self._ask(act, "journal", after)) is not None:
            seen.entries += page["entries"]
            if len(page["entries"]) < PAGE_ENTRIES:
                seen.base = self._ask(act, "state_at", page["base"])
                break
            after = seen.entries[-1]["seq"]
        seen.snapshot = self._ask(act, "snapshot")

    def _ask(self, act: WorkflowActivation, name: str, *args: Any) -> Any:
        """What the workflow answers to a query, as JSON data; None if it does not answer."""
        payloads = [Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(arg).encode()) for arg in args]
        query = QueryWorkflow(query_id=QUERY_ID, query_type=name, arguments=payloads)
        asking = WorkflowActivation(
            run_id=act.run_id,
            timestamp=act.timestamp,
            is_replaying=act.is_replaying,
            history_length=act.history_length,
            jobs=[WorkflowActivationJob(query_workflow=query)],
        )
        commands = self._inner.activate(asking).successful.commands
        if len(commands) != 1 or not commands[0].respond_to_query.HasField("succeeded"):
            return None
        return from_json(commands[0].respond_to_query.succeeded.response.data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Any:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
