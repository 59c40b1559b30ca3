"""refold beside a program's own workflows, in a worker that the program configures."""

from __future__ import annotations

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from refold import DefinitionError
from refold.temporal import RefoldPlugin
from tests.temporal.tools import add
from workflows import hello

SHOP = WorkerDeploymentConfig(
    version=WorkerDeploymentVersion(deployment_name="shop", build_id="v1"), use_worker_versioning=True
)


@workflow.defn(versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Says:
    """A workflow that says what a new version does with it."""

    @workflow.run
    async def run(self) -> None:
        return None


@workflow.defn
class SaysNothing:
    """A workflow that does not."""

    @workflow.run
    async def run(self) -> None:
        return None


async def test_tasks_are_pinned_where_each_workflow_of_the_program_says_its_behavior(client: Client) -> None:
    """
    A skill cannot say it, and the SDK refuses a worker that serves a workflow which does not.
    """
    worker = Worker(
        client, task_queue="shop", workflows=[Says], plugins=[RefoldPlugin([hello])], deployment_config=SHOP
    )

    deployment = worker.config(active_config=True)["deployment_config"]
    assert deployment is not None
    assert deployment.default_versioning_behavior is VersioningBehavior.PINNED


async def test_a_workflow_of_the_program_that_says_nothing_is_still_refused(client: Client) -> None:
    """
    refold decides for its own tasks alone.
    """
    with pytest.raises(ValueError, match="Workflow SaysNothing must specify a versioning behavior"):
        Worker(
            client, task_queue="shop", workflows=[SaysNothing], plugins=[RefoldPlugin([hello])], deployment_config=SHOP
        )


@pytest.mark.parametrize("second", [RefoldPlugin([], [add]), RefoldPlugin([hello])], ids=["tools", "skills"])
async def test_a_worker_with_two_plugins_that_serve_something_is_refused(client: Client, second: RefoldPlugin) -> None:
    """
    Such as the client's and one of its own. The SDK would name an activity of refold's that nobody has registered.
    """
    with pytest.raises(DefinitionError, match=r"(?s)'two-plugins'.*two RefoldPlugins with skills or tools"):
        Worker(client, task_queue="two-plugins", plugins=[RefoldPlugin([hello]), second])


async def test_the_plugin_of_a_client_may_serve_nothing(client: Client) -> None:
    """
    It connects the client, and a worker's plugin has the skills.
    """
    Worker(client, task_queue="two-plugins", plugins=[RefoldPlugin(), RefoldPlugin([hello])])
