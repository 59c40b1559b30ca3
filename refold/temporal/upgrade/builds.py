"""Which code a task runs on, by what the server knows: builds of workers, and versions of worker deployments.

The server writes to each run, at no event, which builds completed its workflow tasks (`BuildIds`). A task whose open
run names one build alone will have nothing replayed that other code did: it has moved to that build.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionDescription
from temporalio.common import SearchAttributeKey

from refold.engine import EngineError
from refold.temporal.client.errors import refusals, set_current
from refold.temporal.client.fleet.polling import POLLING_S, polls_of
from refold.temporal.client.index.search import BUILD_IDS

DEPLOYMENT = SearchAttributeKey.for_keyword("TemporalWorkerDeployment")
_BUILD = "unversioned:"
"""How an entry of `BuildIds` begins that holds a build alone; workers of a deployment leave one, too."""


def builds_of(execution: WorkflowExecution) -> frozenset[str]:
    """The builds that completed the workflow tasks of a run; empty before the first."""
    written = execution.typed_search_attributes.get(BUILD_IDS) or ()
    return frozenset(one.removeprefix(_BUILD) for one in written if one.startswith(_BUILD))


def overriding(execution: WorkflowExecutionDescription) -> Target | None:
    """The version that an operator has pinned a task to: its next runs go there, too, whichever version is current."""
    pinned = execution.raw_description.workflow_execution_info.versioning_info.versioning_override.pinned
    return Target(pinned.version.build_id, pinned.version.deployment_name) if pinned.HasField("version") else None


@dataclass(frozen=True, slots=True)
class Target:
    """The code that a task should move to.

    Attributes:
        build: The build's id; empty for the code at hand, of which no worker runs yet.
        deployment: The worker deployment whose version it is; empty without one.
    """

    build: str
    deployment: str = ""

    def __str__(self) -> str:
        return f"{self.deployment}:{self.build}" if self.deployment and self.build else self.build


@dataclass(slots=True)
class Targets:
    """Finds the code that each task should move to, and asks the server once for tasks that share it.

    Attributes:
        client: Connected.
        build: The build that was named; None takes the current version of a task's deployment, or else the build of
            the workers that poll its task queue.
        dry: Nothing will be sealed, so workers of the wanted code need not be there.
    """

    client: Client
    build: str | None = None
    dry: bool = False
    _found: dict[tuple[str, str], asyncio.Task[Target]] = field(default_factory=dict)

    async def of(self, execution: WorkflowExecution) -> Target:
        """The code that a task should move to.

        Raises:
            EngineError: Nobody can say: several builds poll its task queue, or none, or its deployment has no current
                version. Or no worker of the named build polls, or it is neither current nor ramping.
        """
        key = (execution.typed_search_attributes.get(DEPLOYMENT) or "", execution.task_queue)
        if self.dry or (not key[0] and builds_of(execution) == {self.build}):  # it will not be sealed
            return Target(self.build or "", key[0])
        if key not in self._found:
            found = self._of_deployment(key[0]) if key[0] else self._of_queue(key[1])
            self._found[key] = asyncio.ensure_future(found)
        return await asyncio.shield(self._found[key])

    async def whole(self, target: Target) -> Target:
        """The same code, with the current version of its deployment where a dry run has named no build.

        Raises:
            EngineError: The deployment has no current version.
        """
        return target if target.build or not target.deployment else await self._of_deployment(target.deployment)

    async def _of_deployment(self, name: str) -> Target:
        request = DescribeWorkerDeploymentRequest(namespace=self.client.namespace, deployment_name=name)
        with refusals(f"describe worker deployment {name!r}"):
            answer = await self.client.workflow_service.describe_worker_deployment(request, retry=True)
        routing = answer.worker_deployment_info.routing_config
        current = routing.current_deployment_version.build_id
        build = self.build or current
        if build and build in (current, routing.ramping_deployment_version.build_id):
            return Target(build, name)
        which = f"version {build!r} of worker deployment {name!r} is not current" if build else f"{name!r} has none"
        raise EngineError(
            f"a sealed task goes to the current version of its worker deployment, and {which} (current: "
            f"{current or 'none'}); `{set_current(name, build or 'BUILD')}` makes it so"
        )

    async def _of_queue(self, queue: str) -> Target:
        with refusals(f"describe task queue {queue!r}"):
            builds = sorted((await polls_of(self.client, queue)).builds())
        if self.build in builds or (self.build is None and len(builds) == 1):
            return Target(self.build or builds[0])
        listed = f": {', '.join(builds)}" if builds else ""
        if self.build is not None:
            raise EngineError(
                f"no worker of build {self.build!r} polled task queue {queue!r} in the last {POLLING_S} s, so a sealed "
                f"task would go to another one; start its workers, or name one with --to that polls{listed}"
            )
        said = f"workers of {len(builds)} builds polled" if builds else "no worker polled"
        later = f", or call again {POLLING_S} s after the others have stopped" if builds else ""
        raise EngineError(
            f"{said} task queue {queue!r} in the last {POLLING_S} s{listed}; name the build that tasks should move to "
            f"with --to{later}"
        )
