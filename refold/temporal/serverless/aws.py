"""A worker for AWS Lambda: each call of the function runs a worker until the queue is empty or its time is over."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from temporalio.client import Plugin
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.contrib.aws.lambda_worker import LambdaWorkerConfig, run_worker
from temporalio.worker import WorkerDeploymentConfig

from refold.core.errors import DefinitionError
from refold.effects.threads import leave_threads
from refold.engine import NotConnected
from refold.engine.arguments import defining, takes
from refold.temporal.client.connection import queue_of, tracing
from refold.temporal.serverless.drain import Drained
from refold.temporal.worker.plugin import RefoldPlugin

Handler = Callable[[Any, Any], None]


@takes(defining("lambda_handler", "worker"))
def lambda_handler(
    skills: Sequence[Any],
    tools: Sequence[Callable[..., Any]] = (),
    *,
    deployment: str,
    build_id: str,
    task_queue: str | None = None,
    drain: Drained | None = None,
    configure: Callable[[LambdaWorkerConfig], Any] | None = None,
    **options: Any,
) -> Handler:
    """A handler for AWS Lambda, over the SDK's `temporalio.contrib.aws.lambda_worker`.

    Each call connects as the SDK says (`TEMPORAL_ADDRESS`, `TEMPORAL_CONFIG_FILE`), takes what the queue has for it,
    and returns before the function's time is over. The event is not read: what there is to do is in the queue. An
    `async def` tool that goes on although it was canceled keeps the call until Lambda ends it.

    Args:
        skills: Skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.
        deployment: The worker deployment; its current version must be `build_id`, or the worker is given nothing.
        build_id: A name of the code, such as a commit.
        task_queue: The task queue that it polls; None takes `REFOLD_TASK_QUEUE`, else `refold`.
        drain: When a call returns; None is `Drained()`: as soon as the queue is empty. All return shortly before the
            function's time is over.
        configure: Called with the SDK's settings in each call, to change them; in any of the forms that the SDK takes:
            `def`, `async def`, or an async generator, which goes on after its `yield` when the worker has stopped.
        options: Passed on to `RefoldPlugin`: `model`, `recovery`, `storage` and so on.

    Raises:
        DefinitionError: A skill or a tool is wrong, or `deployment` or `build_id` is empty.
    """
    for name, value in (("deployment", deployment), ("build_id", build_id)):
        if not value:
            raise DefinitionError(name, ["it is empty; the server gives tasks to named versions only"], what="setting")
    version = WorkerDeploymentVersion(deployment_name=deployment, build_id=build_id)
    RefoldPlugin(skills, tools, **options)  # what is defined wrongly is found while the function starts

    async def configured(config: LambdaWorkerConfig) -> AsyncGenerator[None, None]:
        leave_threads(asyncio.get_running_loop())
        plugins: list[Plugin] = [RefoldPlugin(skills, tools, **options)]
        config.client_connect_config["plugins"] = plugins
        config.client_connect_config["interceptors"] = tracing()
        config.worker_config["task_queue"] = queue_of(task_queue)
        config.worker_config["deployment_config"] = WorkerDeploymentConfig(
            version=version,
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        )
        config.worker_config["plugins"] = [Drained() if drain is None else drain.anew()]
        try:
            async with _changed(config, configure):
                if not config.client_connect_config.get("target_host"):
                    raise NotConnected(
                        "no Temporal server is named: set TEMPORAL_ADDRESS, or TEMPORAL_CONFIG_FILE, for the function"
                    )
                yield
        finally:
            if (traces := sys.modules.get("refold.temporal.tracing")) is not None:
                traces.flush()  # the function is frozen until its next call, which may never come

    return run_worker(version, configured)


@asynccontextmanager
async def _changed(
    config: LambdaWorkerConfig, configure: Callable[[LambdaWorkerConfig], Any] | None
) -> AsyncIterator[None]:
    """Applies the caller's changes of the settings, as the SDK does."""
    if inspect.isasyncgenfunction(configure):
        configure = asynccontextmanager(configure)
    made = None if configure is None else configure(config)
    if inspect.isawaitable(made):
        await made
    async with made if isinstance(made, AbstractAsyncContextManager) else nullcontext():
        yield
