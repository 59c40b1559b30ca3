"""The connection to a Temporal server: how it is made, and the questions that every reader of tasks asks through it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Interceptor,
    Plugin,
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import GrpcCompression, RPCError, RPCStatusCode

from refold.core.errors import DefinitionError
from refold.effects.asking import asked
from refold.engine import NotConnected, TaskNotFound
from refold.formats import known_here
from refold.temporal.client import stopped
from refold.temporal.client.crowds import Crowds
from refold.temporal.client.errors import (
    in_failed_state,
    is_missing,
    namespace_missing,
    refusals,
    server_refused,
    timed_out,
)
from refold.temporal.client.failed import try_anew
from refold.temporal.client.fleet.fitting import of_fitting_worker
from refold.temporal.client.index import search
from refold.temporal.client.index.newest_first import Windows
from refold.temporal.client.record_cache import Standing
from refold.temporal.data import search_attributes
from refold.temporal.data.payloads import data_converter

QUEUE, QUEUE_ENV = "refold", "REFOLD_TASK_QUEUE"

PATIENCE = timedelta(seconds=3)
"""How long a worker may take to answer a query before it counts as not there."""

UPDATE_PATIENCE = timedelta(seconds=15)
"""How long a worker may take to accept an update: longer than the ten seconds after which the server takes a workflow
task for lost, with its worker or since the SDK dropped it, and gives the update to another."""

PING_PATIENCE = timedelta(seconds=2)
"""How long the server may take to say that it is there."""

QUERY_ATTEMPTS = 2
"""The SDK drops a query that arrives while it evicts the task from its cache; no worker ever answers that query."""

SOON_S = 0.1
"""The pause before a task is asked again that is about to say why it stands still, in seconds."""

EXIT_PAUSE_S = 0.05
"""How long a process that has connected to a server pauses before it exits, in seconds."""

LOOK_S, MOMENT_S, DOUBLED = 0.05, 0.4, 4
"""After a worker refused a query: the first pause between two calls of `standing`, and the longest wait before the
first retry, both in seconds; and how many times that wait may double, once for each further refusal."""

T = TypeVar("T")


def queue_of(given: str | None) -> str:
    """The task queue that a program names, else that of `REFOLD_TASK_QUEUE`, else `refold`."""
    return given or os.environ.get(QUEUE_ENV) or QUEUE


@dataclass(frozen=True, slots=True)
class Connection:
    """A client's access to the tasks of a server.

    Attributes:
        opened: With refold's data converter or plugin.
        task_queue: The workers that serve new tasks.
        patience: How long a worker may take to answer a query before it counts as not there.
        windows: Where the newest tasks of each filter were found.
        crowds: The callers of each task.
        made_by: The process that made it.
    """

    opened: Client
    task_queue: str
    patience: timedelta = PATIENCE
    windows: Windows = field(default_factory=Windows, compare=False)
    crowds: Crowds = field(default_factory=Crowds, compare=False)
    made_by: int = field(default_factory=os.getpid, compare=False)

    @property
    def client(self) -> Client:
        """`opened`, in the process that opened it.

        Raises:
            NotConnected: This process is a fork of that one.
        """
        if os.getpid() != self.made_by:
            raise _forked()
        return self.opened

    async def describe(self, task_id: str) -> WorkflowExecutionDescription:
        """The newest run of a task, as the server knows it.

        Raises:
            TaskNotFound: There is no such task.
            EngineError: The server refuses, or does not answer.
        """
        with _describing(task_id):
            description = await self.client.get_workflow_handle(task_id).describe()
        shown = description.typed_search_attributes
        taken = description.status in search.CLOSED or shown.get(search.BUILD_IDS) is not None
        if taken and shown.get(search_attributes.SKILL) is None:  # a task's first worker writes its skill
            raise TaskNotFound(task_id)  # a workflow, but none of ours
        return description

    async def standing(self, task_id: str) -> Standing:
        """How a task stands. Decodes nothing, so that it costs a third of `describe`; nor does it ask whether the
        workflow is a task.

        Raises:
            TaskNotFound: The server has no such workflow.
            EngineError: The server refuses, or does not answer.
        """
        request = DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=WorkflowExecution(workflow_id=task_id)
        )
        with _describing(task_id):
            answer = await self.client.workflow_service.describe_workflow_execution(request, retry=True)
        run = answer.workflow_execution_info
        taken_in = not answer.HasField("pending_workflow_task")
        return Standing(run_id=run.execution.run_id, events=run.history_length if taken_in else None)

    async def query(
        self,
        task_id: str,
        name: str,
        arguments: Sequence[object] = (),
        *,
        kind: type[T],
        run_id: str | None = None,
        patience: timedelta | None = None,
        if_open: bool = False,
    ) -> T:
        """What a task's worker answers to a query; asked again where the first attempt was lost.

        A task that is stopped, since its code differs from what was recorded, answers too: see `stopped`.

        Args:
            task_id: The task.
            name: The query's name.
            arguments: The query's.
            kind: The answer's type.
            run_id: Which run of the task; None is the newest.
            patience: How long the attempts may take together; None is the connection's own. Attempts that a worker
                refuses, since the task is about to take in what came to it, and the waits after them come on top.
            if_open: Refuse where the task has ended.

        Raises:
            WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError: As the SDK's `query`.
            NewerFormat: The worker is of a newer release, and its answer holds what this one does not know.
            TaskNotFound, EngineError: As `standing`.
        """
        handle = self.client.get_workflow_handle(task_id, run_id=run_id)
        query = partial(
            handle.query,
            name,
            args=arguments,
            result_type=kind,
            reject_condition=QueryRejectCondition.NOT_OPEN if if_open else None,
            rpc_timeout=(patience or self.patience) / QUERY_ATTEMPTS,
        )
        attempt, until = 0, time.monotonic() + (patience or self.patience).total_seconds()
        ask = partial(asked, query, partial(self._taken_in, task_id))
        while True:
            attempt += 1
            try:
                with known_here("answer of a worker"):
                    answer: T = await of_fitting_worker(self.client, task_id, ask)
            except WorkflowQueryRejectedError as rejected:
                if rejected.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:  # it went on while we asked
                    raise
            except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError) as error:
                if in_failed_state(error) or timed_out(error):
                    description = await self.describe(task_id)
                    is_newest = run_id in (None, description.run_id)  # what it fails with says nothing of earlier runs
                    if is_newest:
                        found = await stopped.answer(self.client, description, name, arguments)
                        if isinstance(found, kind):
                            return found
                    waited = is_newest and in_failed_state(error) and time.monotonic() < until
                    if waited and (stopped.soon(description) or await try_anew(self.client, description)):
                        await asyncio.sleep(SOON_S)
                        continue
                if attempt >= QUERY_ATTEMPTS or not timed_out(error):
                    raise
            else:
                return answer

    async def _taken_in(self, task_id: str, refused: int) -> None:
        """Wait until a task has no pending workflow task, for about `MOMENT_S`, doubled for each earlier refusal."""
        pause, until = LOOK_S, time.monotonic() + MOMENT_S * 2 ** min(refused - 1, DOUBLED)
        while (await self.standing(task_id)).events is None and time.monotonic() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def ping(self) -> None:
        """Ask for the namespace, so that both the server and the namespace must be there.

        Raises:
            EngineError: The server refuses, or does not answer.
        """
        request = DescribeNamespaceRequest(namespace=self.client.namespace)
        with refusals("describe its namespace"):
            await self.client.workflow_service.describe_namespace(request, retry=False, timeout=PING_PATIENCE)

    async def check_namespace(self) -> None:
        """Ask for the namespace. A server that does not answer now, or that does not say, is taken to have it.

        Raises:
            EngineError: The server has no such namespace.
        """
        request = DescribeNamespaceRequest(namespace=self.client.namespace)
        try:
            await self.client.workflow_service.describe_namespace(request, retry=False, timeout=PING_PATIENCE)
        except RPCError as error:
            if namespace_missing(error):
                raise server_refused(error, "describe its namespace") from None


@contextlib.contextmanager
def _describing(task_id: str) -> Iterator[None]:
    """Raises the errors of `describe`."""
    try:
        yield
    except RPCError as error:
        # An id that the server does not take, such as an empty one, belongs to no task.
        if is_missing(error) or error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise TaskNotFound(task_id) from None
        raise server_refused(error, f"describe task {task_id!r}") from None


async def connected(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    plugins: Sequence[Plugin] = (),
) -> Client:
    """A Temporal client that writes values as refold does.

    Args:
        address: `host:port`; None takes Temporal's own settings, else localhost:7233.
        namespace: None takes Temporal's own settings, else `default`.
        profile: A profile of Temporal's configuration file.
        plugins: More plugins of the SDK.

    Raises:
        NotConnected: No server answers, or the settings are wrong.
    """
    _pause_at_exit()
    settings = settings_from(profile)
    target = address or settings.get("target_host") or "localhost:7233"
    if "://" in target:
        raise _no_address(target, ", but a URL (TEMPORAL_TLS=true asks for TLS)")
    given: dict[str, Any] = {**settings, "target_host": target, "plugins": list(plugins)}
    if namespace is not None:
        given["namespace"] = namespace
    # Without TLS the server is on this machine or on a private network, where compression costs more than it saves.
    if not settings.get("tls"):
        given["grpc_compression"] = GrpcCompression.NONE
    if not plugins:
        given["data_converter"] = data_converter()
    given["interceptors"] = tracing()
    try:
        return await Client.connect(**given)
    except (RuntimeError, RPCError) as error:
        host = target.rstrip(":")
        no_port = "" if re.search(r":\d+/?$", target) else f"The address names no port; Temporal's own is {host}:7233. "
        raise NotConnected(
            f"no Temporal server answers at {target}: {_cause(error)}. {no_port}Start one with `refold dev`, or name "
            "another with --address or TEMPORAL_ADDRESS"
        ) from None
    except AssertionError as error:
        if "across forks" not in str(error):
            raise
        raise _forked() from None
    except ValueError as error:
        if "target URL" not in str(error):  # a certificate without its key, for example
            raise NotConnected(f"Temporal's settings cannot be used: {error}") from None
        raise _no_address(target, f" ({error})") from None


def _forked() -> NotConnected:
    """The SDK's runtime does not survive a fork, neither with the parent's client nor for another one."""
    return NotConnected(
        "this process was forked from one that had connected, whose connection a fork cannot have: connect in the "
        "child processes alone, or start them with `multiprocessing.get_context('spawn')`"
    )


def _no_address(target: str, why: str = "") -> NotConnected:
    return NotConnected(
        f"{target!r} is no address of a Temporal server{why}; write host:port, for example localhost:7233, in "
        "--address or TEMPORAL_ADDRESS"
    )


def settings_from(profile: str | None = None) -> ClientConnectConfig:
    """Temporal's own settings of a connection, from the environment and its configuration file; connects to nothing.

    Args:
        profile: A profile of Temporal's configuration file.

    Raises:
        NotConnected: The settings cannot be read.
    """
    try:
        return ClientConfig.load_client_connect_config(profile=profile)
    except Exception as error:
        raise NotConnected(f"Temporal's settings cannot be read: {error}") from error


def namespace_from(profile: str | None = None) -> str:
    """The namespace of `settings_from`, whose errors it raises."""
    return str(settings_from(profile).get("namespace") or "default")


def tracing() -> list[Interceptor]:
    """What traces a client's calls, as `REFOLD_TRACES` says; empty if it is unset.

    Raises:
        DefinitionError: The setting cannot be followed.
    """
    if not os.environ.get("REFOLD_TRACES", "").strip():
        return []
    try:
        from refold.temporal.tracing import tracing_from_env
    except ModuleNotFoundError as error:
        raise DefinitionError(
            "REFOLD_TRACES", [f"it needs more packages ({error}): pip install 'refold[otel]'"], what="setting"
        ) from None
    made = tracing_from_env()
    assert made is not None, "the setting is there"
    return [made]


@cache
def _pause_at_exit() -> None:
    """Pause briefly at exit; registered once for the process.

    A thread of the SDK may still be delivering the last answer; Python would then abort with exit code 134.
    """
    atexit.register(time.sleep, EXIT_PAUSE_S)


_CAUSES = {
    "InvalidContentType": "what answers there speaks no TLS, which an API key, a certificate or TEMPORAL_TLS asks for; "
    "for a server without TLS, such as that of `refold dev`, set TEMPORAL_TLS=false",
    r"h2 protocol error|hyper::Error\((Io|Canceled)\b": "what answers there closed the connection: it speaks no gRPC, "
    "as the web UI (its usual port is 8233, the server's 7233), asks for TLS (TEMPORAL_TLS=true), or is a proxy whose "
    "server is down",
    "InvalidCertificate": "its certificate is refused; TEMPORAL_TLS_SERVER_CA_CERT_PATH names its authority, "
    "TEMPORAL_TLS_SERVER_NAME the name in it",
}
"""Patterns of what the SDK's core says in its own terms, with what they mean."""


def _cause(error: Exception) -> str:
    """The last cause in what the SDK's core says, which names one inside the other; in plain words, where known."""
    for pattern, meaning in _CAUSES.items():
        if re.search(pattern, str(error)):
            return meaning
    causes = re.findall(r'(?:message|error|details): "((?:[^"\\]|\\.)+)"', str(error))
    return causes[-1] if causes else str(error)
