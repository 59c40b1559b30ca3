"""Open tasks move to new code, or it is said why not; what has moved is read from the server alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError

from refold import Content, InputRejected, Status, TaskState
from refold.engine import CodeChanged, TaskView
from refold.temporal import Outcome, RefoldPlugin, TaskUpgrade, TemporalEngine, make_worker, upgrade_tasks
from refold.temporal.data.search_attributes import SKILL
from refold.temporal.data.storage import Folder
from refold.temporal.upgrade import upgrade as upgrading
from refold.temporal.upgrade.checks import BACK, BEFORE, NEWER, STAY
from refold.temporal.upgrade.sealing import seal, taken
from refold.testing.play import START
from tests.temporal.conftest import PATIENT
from tests.temporal.test_later import LATER
from tests.temporal.test_task import settled, text
from tests.temporal.upgrade import new_skills, sealed_skills
from tests.temporal.upgrade.sealed_skills import TOOLS, doors, paid, reached
from tests.temporal.upgrade.test_seal import begun, run_of
from tests.waiting import a_moment

SHOP_B2 = "temporal worker deployment set-current-version --deployment-name shop --build-id b2"

SOON = timedelta(seconds=1)
"""How long is waited for what no worker answers."""


@pytest.fixture(autouse=True)
def values_of_replays(monkeypatch: pytest.MonkeyPatch, values: Folder) -> None:
    """The replay check reads large values where the workers keep them."""
    monkeypatch.setenv("REFOLD_STORAGE", str(values.path))


def worker(client: Client, values: Folder, skills: Any, queue: str, build: str, deployment: str | None = None) -> Any:
    plugin = RefoldPlugin([skills], TOOLS, model="scripted:demo", storage=values)
    return make_worker(client, plugin, task_queue=queue, build_id=build, deployment=deployment)


def timeless(note: str) -> str:
    """A reason without the age of a poll."""
    return note.partition(" (by this machine's clock")[0]


async def moved(engine: TemporalEngine, skills: Any, ids: Sequence[str], **more: Any) -> dict[str, TaskUpgrade]:
    """What became of these tasks."""
    return {move.task_id: move async for move in upgrade_tasks(engine, [skills], TOOLS, task_ids=ids, **more)}


async def outcomes(engine: TemporalEngine, skills: Any, ids: Sequence[str], **more: Any) -> list[str]:
    found = await moved(engine, skills, ids, **more)
    return [found[id].outcome for id in ids]


async def test_named_tasks_of_another_skill_are_left_alone() -> None:
    """
    A skill that is named beside tasks narrows them, as it narrows all open tasks.
    """

    async def described(id: str) -> Any:
        skill = SearchAttributePair(SKILL, id.partition("-")[0])
        return SimpleNamespace(
            id=id,
            workflow_type=skill.value,
            typed_search_attributes=TypedSearchAttributes([skill]),
            status=WorkflowExecutionStatus.COMPLETED,
            close_time=START,
            start_time=START,
        )

    engine: Any = TemporalEngine(await Client.connect("127.0.0.1:1", lazy=True))
    engine.connection = SimpleNamespace(describe=described, client=None)

    found = await moved(engine, sealed_skills, ["pays-1", "whole-1"], skill="pays", before_deploy=True)

    assert list(found) == ["pays-1"]


async def test_one_worker_restarted(client: Client, values: Folder) -> None:
    """
    Without deployments: new code that fits what has happened seals the tasks itself. Both the code at hand and the
    builds that poll are compared: a task is moved once, a second call leaves it alone, and so it does a new task.
    """
    engine = TemporalEngine(client, "restarted", patience=PATIENT)
    async with worker(client, values, sealed_skills, "restarted", "b1"):
        ids = [await begun(engine, "whole_of_pays", "r1 tea")]
    async with worker(client, values, sealed_skills, "restarted", "b2"):
        new = await begun(engine, "pays", "r2 tea")
        ids += [f"{ids[0]}/1.1", new]
        runs = [await run_of(engine, id) for id in ids]

        dry = await outcomes(engine, sealed_skills, ids, dry_run=True, to="b2")
        assert [await run_of(engine, id) for id in ids] == runs
        first = await moved(engine, sealed_skills, ids, to="b2")
        after = [await run_of(engine, id) for id in ids]
        again = await outcomes(engine, sealed_skills, ids, to="b2")

        assert dry == [Outcome.WOULD_MOVE, Outcome.WOULD_MOVE, Outcome.ALREADY]
        assert [first[id].outcome for id in ids] == [
            Outcome.MOVED,
            Outcome.MOVED,
            Outcome.ALREADY,
        ], first
        assert (again, [first[id].to for id in ids]) == ([Outcome.ALREADY] * 3, ["b2"] * 3)
        assert [one != other for one, other in zip(runs, after, strict=True)] == [True, True, False]
        assert [await run_of(engine, id) for id in ids] == after
        for id in (ids[0], new):
            await engine.decide(id, approved=True, approver="ada")
            assert (await settled(engine, id)).status is Status.COMPLETED
    assert (paid["r1 tea"], paid["r2 tea"]) == (1, 1)


async def test_sealed_by_old_code_before_a_deploy(
    client: Client, values: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """
    New code that does not fit is named by a dry run. Sealed with the old code, a task meets the new code as data; one
    that is in the middle of a changed step cannot, and is told so before.
    """
    engine = TemporalEngine(client, "before", patience=PATIENT)
    doors["south"].set()
    async with worker(client, values, sealed_skills, "before", "b1"):
        ids = [await begun(engine, skill, "south") for skill in ("passes", "asks_twice")]
        passes, asks = ids
        unfit = await moved(engine, new_skills, ids, dry_run=True)
        sealed = await moved(engine, sealed_skills, ids, before_deploy=True)
        again = await moved(engine, sealed_skills, ids, before_deploy=True)
        fits = await moved(engine, new_skills, ids, dry_run=True)
    async with worker(client, values, new_skills, "before", "b2"):
        await engine.send(passes, text("on"))
        done = await settled(engine, passes)

    assert [unfit[id].outcome for id in ids] == [Outcome.CANNOT] * 2
    assert all("differs from what was recorded" in unfit[id].why for id in ids)
    assert "refold upgrade --before-deploy" in unfit[passes].way_out
    assert "keep the old code for it until it has left the step" in unfit[asks].way_out
    assert [sealed[id].outcome for id in ids] == [Outcome.MOVED] * 2
    assert [again[id].outcome for id in ids] == [Outcome.ALREADY] * 2
    assert again[passes].why == "nothing has happened to it since it was sealed"
    assert [fits[id].outcome for id in ids] == [Outcome.WOULD_MOVE, Outcome.CANNOT]
    assert "step 'begin' asked for tool:pay" in fits[asks].why
    assert "Failed activation" not in caplog.text, "a check says what it found, and no more"
    assert done.messages[-1].text == "on, then"


@pytest.mark.parametrize("skills", [new_skills, None], ids=["new workers", "no workers"])
async def test_whether_a_seal_helps_only_the_code_that_recorded_a_task_can_tell(
    hasty_client: Client, values: Folder, skills: Any
) -> None:
    """
    Once its workers are gone, the way out is not a seal, which may not help: it is to put that code back, and to ask.
    """
    queue = "too_late" if skills is None else "too_late_with_new"
    engine = TemporalEngine(hasty_client, queue)
    doors["south"].set()
    async with worker(hasty_client, values, sealed_skills, queue, "b1"):
        ids = [await begun(engine, skill, "south") for skill in ("passes", "asks_twice")]
    if skills is None:
        late = await moved(engine, new_skills, ids, dry_run=True)
    else:
        async with worker(hasty_client, values, skills, queue, "b2"):
            late = await moved(engine, new_skills, ids, dry_run=True, to="b3")
    async with worker(hasty_client, values, sealed_skills, queue, "b1"):
        in_time = await moved(engine, new_skills, ids, dry_run=True, to="b3")

    assert [late[id].way_out for id in ids] == [BACK] * 2
    assert [in_time[id].way_out for id in ids] == [BEFORE, STAY]


async def test_versions_of_a_deployment(client: Client, values: Folder) -> None:
    """
    A task stays on the version that began it; sealed, its next run goes to the current version, whose code need not fit
    what has happened, and must be able to go on from there. A task that cannot go on, or would go on without a value
    that it has saved, stays where it is. So does one that the server gives to the old version while the new one ramps.
    """
    engine = TemporalEngine(client, "versions", patience=PATIENT)
    doors["west"].set()
    async with (
        worker(client, values, sealed_skills, "versions", "b1", "shop"),
        worker(client, values, new_skills, "versions", "b2", "shop"),
    ):
        await make_current(client, "shop", "b1")
        fit = [await begun(engine, skill, said) for skill, said in (("pays", "v tea"), ("passes", "west"))]
        unable = (("pays", "stuck tea"), ("asks_twice", "west"), ("adds_up", "tea"))
        unfit = [await begun(engine, skill, said) for skill, said in unable]
        kept = await begun(engine, "pays", "kept tea")
        await pin(client, kept, "shop", "b1")
        sent = await begun(engine, "pays", "sent tea")
        run = await run_of(engine, kept)
        with_nothing_to_do = await outcomes(engine, new_skills, [*fit, *unfit])
        too_early = await moved(engine, new_skills, fit, to="b2")
        await ramp(client, "shop", "b2", percentage=0)
        ramping = await moved(engine, new_skills, fit, to="b2")
        await make_current(client, "shop", "b2")
        await pin(client, sent, "shop", "b2")
        dry = await moved(engine, new_skills, [sent, kept], dry_run=True)
        first = await moved(engine, new_skills, [*fit, *unfit, kept])
        still = await run_of(engine, kept)
        for id in (fit[0], unfit[0]):
            await engine.decide(id, approved=True, approver="ada")
        ends = [(await settled(engine, id)).messages[-1].text for id in (fit[0], unfit[0])]

    assert with_nothing_to_do == [Outcome.ALREADY] * 5
    assert all(f"`{SHOP_B2}`" in one.why for one in too_early.values())
    for one in ramping.values():
        assert (one.outcome, one.why) == (Outcome.CANNOT, "sealed, and a worker of b1 took its new run")
        assert one.way_out == f"once shop:b2 is current (`{SHOP_B2}`) and no version ramps, the same command moves it"
    assert [dry[id].outcome for id in (sent, kept)] == [Outcome.WOULD_MOVE, Outcome.CANNOT], dry
    assert [first[id].outcome for id in (*fit, *unfit)] == [*[Outcome.MOVED] * 2, *[Outcome.CANNOT] * 3]
    assert "nobody knows what this order means now" in first[unfit[0]].why
    assert "step 'begin' asked for tool:pay" in first[unfit[1]].why
    assert "the state has a field 'cents' that the code does not know" in first[unfit[2]].why
    assert "write an `upgrade`" in first[unfit[2]].way_out
    assert [first[id].to for id in fit] == ["shop:b2"] * 2
    assert (first[kept].outcome, first[kept].why) == (Outcome.CANNOT, "an override pins it to shop:b1")
    assert "--versioning-override-behavior unspecified`" in first[kept].way_out
    assert still == run
    assert ends == ["paid v tea, with ada's leave", "paid stuck tea, by ada"]
    assert (paid["v tea"], paid["stuck tea"]) == (1, 1)


def begins_at(view: TaskView) -> datetime:
    """When a delayed task says that it begins, in whole seconds."""
    return datetime.strptime(view.note.split("; ")[0], "it begins at %Y-%m-%d %H:%M:%S %Z").replace(tzinfo=UTC)


async def test_tasks_that_have_not_begun_move(client: Client, values: Folder) -> None:
    """
    A held task, and one whose time has not come, belong to the version that took them. Sealed they are as before, with
    the same message and time, and begin on the new version, although no worker of the old one is left.
    """
    engine = TemporalEngine(client, "held", patience=PATIENT)
    async with worker(client, values, sealed_skills, "held", "b1", "kept"):
        await make_current(client, "kept", "b1")
        ids = [(await engine.start("pays", text(f"h{n} tea"), **later)).task_id for n, later in enumerate(LATER)]
        for id in ids:  # a delayed task comes to no worker before its time, unless somebody sends it something
            with pytest.raises(InputRejected, match=f"release {id}"):
                await engine.send(id, text("too early"))
        before = [await engine.look(id) for id in ids]
        async with worker(client, values, new_skills, "held", "b2", "kept"):
            await make_current(client, "kept", "b2")
            dry = await outcomes(engine, new_skills, ids, dry_run=True)
            first = await moved(engine, new_skills, ids)
            again = await outcomes(engine, new_skills, ids)
    async with worker(client, values, new_skills, "held", "b2", "kept"):
        after = [await engine.look(id) for id in ids]
        for id in ids:
            await engine.release(id)
            await engine.decide(id, approved=True, approver="ada")
        ends = [(await settled(engine, id)).messages[-1].text for id in ids]

    assert dry == [Outcome.WOULD_MOVE] * 2
    assert [first[id].outcome for id in ids] == [Outcome.MOVED] * 2, first
    assert again == [Outcome.ALREADY] * 2
    assert [one.lifecycle for one in after] == [TaskState.PLANNED] * 2
    assert [one.messages for one in after] == [one.messages for one in before]
    # A new run's delay is counted from its start, which a busy server may take its time for.
    assert abs(begins_at(after[1]) - begins_at(before[1])) <= timedelta(minutes=1)
    assert ends == ["paid h0 tea, with ada's leave", "paid h1 tea, with ada's leave"]


async def make_current(client: Client, deployment: str, build: str) -> None:
    """Give a deployment a current version, once a worker of it polls."""
    while True:
        try:
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=client.namespace, deployment_name=deployment, build_id=build
                )
            )
        except RPCError:
            continue
        return


async def ramp(client: Client, deployment: str, build: str, *, percentage: float) -> None:
    """Give a version a share of new runs."""
    await client.workflow_service.set_worker_deployment_ramping_version(
        SetWorkerDeploymentRampingVersionRequest(
            namespace=client.namespace, deployment_name=deployment, build_id=build, percentage=percentage
        )
    )


async def pin(client: Client, task_id: str, deployment: str, build: str) -> None:
    """Pin a task to a version, as `temporal workflow update-options` does."""
    pinned = VersioningOverride.PinnedOverride(
        behavior=VersioningOverride.PINNED_OVERRIDE_BEHAVIOR_PINNED,
        version=WorkerDeploymentVersion(deployment_name=deployment, build_id=build),
    )
    await client.workflow_service.update_workflow_execution_options(
        UpdateWorkflowExecutionOptionsRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=task_id),
            workflow_execution_options=WorkflowExecutionOptions(versioning_override=VersioningOverride(pinned=pinned)),
            update_mask=FieldMask(paths=["versioning_override"]),
        )
    )


async def test_an_effect_under_way_is_waited_for(
    client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The table says for what a task waits; it moves by itself then, and a second call says that it has.
    """
    monkeypatch.setattr(upgrading, "PATIENCE", upgrading.PATIENCE * 0)
    engine = TemporalEngine(client, "busy", patience=PATIENT)
    async with worker(client, values, sealed_skills, "busy", "b1"):
        task_id = (await engine.start("passes", text("east"))).task_id
        await reached["east"].wait()
        dry = await moved(engine, sealed_skills, [task_id], before_deploy=True, dry_run=True)
        waits = await moved(engine, sealed_skills, [task_id], before_deploy=True)
        still = await moved(engine, sealed_skills, [task_id], before_deploy=True)
        doors["east"].set()
        await settled(engine, task_id)
        after = await moved(engine, sealed_skills, [task_id], before_deploy=True)

    assert (dry[task_id].outcome, dry[task_id].why) == (Outcome.WOULD_MOVE, "waits for tool pass_door")
    for one in (waits, still):
        assert (one[task_id].outcome, one[task_id].why) == (Outcome.WAITS, "waits for tool pass_door")
    assert after[task_id].outcome is not Outcome.CANNOT


async def test_a_run_that_the_old_worker_takes_is_named(client: Client, values: Folder) -> None:
    """
    A build that nobody runs is no place to go. Where workers of two builds poll, nobody can guess which is meant; the
    one that is not meant may take the new run.
    """
    engine = TemporalEngine(client, "both", patience=PATIENT)
    async with worker(client, values, sealed_skills, "both", "b1"):
        ids = [await begun(engine, "pays", "both tea")]
        typo = await moved(engine, sealed_skills, ids, to="b3")
        there = await moved(engine, sealed_skills, ids, to="b1")
        other = await Client.connect(
            client.service_client.config.target_host, namespace=client.namespace, data_converter=client.data_converter
        )
        async with worker(other, values, sealed_skills, "both", "b2"):
            while len(await pollers(client, "both")) < 2:
                await a_moment()
            asked = await moved(engine, sealed_skills, ids)
        cannot = await moved(engine, sealed_skills, ids, to="b2")

    assert typo[ids[0]].outcome is Outcome.CANNOT
    assert typo[ids[0]].why.startswith("no worker of build 'b3' polled task queue 'both' in the last 90 s")
    assert typo[ids[0]].why.endswith("that polls: b1")
    assert there[ids[0]].outcome is Outcome.ALREADY
    assert cannot[ids[0]].outcome is Outcome.CANNOT
    assert cannot[ids[0]].why == "sealed, and a worker of b1 took its new run"
    assert "workers of 2 builds polled task queue 'both'" in asked[ids[0]].why
    assert asked[ids[0]].why.endswith("with --to, or call again 90 s after the others have stopped")


async def pollers(client: Client, queue: str) -> set[str]:
    """The builds of the workers on a task queue."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    answer = await client.workflow_service.describe_task_queue(request)
    return {one.worker_version_capabilities.build_id for one in answer.pollers}


async def test_a_skill_that_is_not_at_hand_is_named(client: Client, values: Folder) -> None:
    """
    A task is not sealed unchecked.
    """
    engine = TemporalEngine(client, "unknown", patience=PATIENT)
    async with worker(client, values, sealed_skills, "unknown", "b1"):
        ids = [await begun(engine, "whole_of_pays", "u tea")]
        found = await moved(engine, new_skills, ids, before_deploy=True)

    assert found[ids[0]].outcome is Outcome.CANNOT
    known = "adds_up, asks_twice, asks_twice_by_contract, passes, pays"
    assert found[ids[0]].why == f"its skill 'whole_of_pays' is not in the modules at hand, which have: {known}"


async def test_code_that_cannot_read_a_state_loses_nothing(client: Client, values: Folder) -> None:
    """
    After a rollback, a task that newer code has sealed waits for that code, and says so.
    """
    engine = TemporalEngine(client, "rollback", patience=PATIENT)
    async with worker(client, values, new_skills, "rollback", "b2"):
        task_id = await begun(engine, "pays", "back tea")
        assert (await moved(engine, new_skills, [task_id], before_deploy=True))[task_id].outcome is Outcome.MOVED
    async with worker(client, values, sealed_skills, "rollback", "b1"):
        note = (await engine.look(task_id)).note
    async with worker(client, values, new_skills, "rollback", "b2"):
        back = (await moved(engine, sealed_skills, [task_id], to="b1", dry_run=True))[task_id]
        await engine.decide(task_id, approved=True, approver="ada")
        done = await settled(engine, task_id)

    assert "a worker with the newer code goes on with it" in back.why
    assert back.way_out == NEWER
    assert "version 2 of its skill saved this task's state; this worker has version 1" in note
    assert done.messages[-1].text == "paid back tea, with ada's leave"


@pytest.mark.parametrize("skill", ["asks_twice", "asks_twice_by_contract"])
async def test_code_that_changed_a_step_under_a_sealed_task_loses_nothing(
    client: Client, values: Folder, skill: str
) -> None:
    """
    The step is driven again from its start, and would do something else: the task waits for the code that fits.
    """
    engine = TemporalEngine(client, "midway", patience=PATIENT)
    async with worker(client, values, sealed_skills, "midway", "b1"):
        task_id = await begun(engine, skill, "north")
        assert (await moved(engine, sealed_skills, [task_id], before_deploy=True))[task_id].outcome is Outcome.MOVED
    async with worker(client, values, new_skills, "midway", "b2"):
        told = await engine.look(task_id)
    async with worker(client, values, sealed_skills, "midway", "b1"):
        for _ in range(2):
            await engine.send(task_id, Content.from_text("yes"))
            await settled(engine, task_id)
        done = await engine.look(task_id)

    assert "step 'begin' asked for" in told.note
    assert done.messages[-1].text == "paid twice"


async def test_a_sealed_task_is_shown_as_it_was_though_its_code_cannot_take_a_message(
    hasty_client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A message that comes where a step was changed under a sealed task is not taken: the task has not failed.
    """
    monkeypatch.setattr("refold.temporal.client.updates.UPDATE_PATIENCE", SOON)
    engine = TemporalEngine(hasty_client, "too_early")
    async with worker(hasty_client, values, sealed_skills, "too_early", "b1"):
        task_id = await begun(engine, "asks_twice", "north")
        assert (await moved(engine, sealed_skills, [task_id], before_deploy=True))[task_id].outcome is Outcome.MOVED
        before = await engine.look(task_id)
    async with worker(hasty_client, values, new_skills, "too_early", "b2"):
        with pytest.raises(CodeChanged, match="step 'begin' asked for"):
            await engine.send(task_id, text("too early"))
        told = await engine.look(task_id)
        entries = [entry.seq async for entry in engine.journal(task_id)]

    assert "step 'begin' asked for" in told.note
    assert told.model_copy(update={"note": "", "differs": ""}) == before
    assert entries == list(range(1, before.seq + 1))


async def test_a_task_whose_version_is_gone_says_so(
    client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Workers of another version cannot help: the one that it is pinned to is named, and how to start a worker of it.
    """
    monkeypatch.setattr("refold.temporal.client.errors.POLLING_S", 0)
    engine = TemporalEngine(client, "gone", patience=PATIENT)
    async with worker(client, values, sealed_skills, "gone", "b1", "gone"):
        await make_current(client, "gone", "b1")
        task_id = await begun(engine, "pays", "gone tea")
        first = await engine.connection.describe(task_id)
        await seal(engine.connection, task_id)
        sealed = await taken(engine.connection, task_id, first.run_id, upgrading.PATIENCE)
        before = await engine.look(task_id)
    engine = TemporalEngine(client, "gone", patience=SOON)
    async with worker(client, values, sealed_skills, "gone", "b2", "gone"):
        await make_current(client, "gone", "b2")
        view = await engine.look(task_id)
        found = await moved(engine, sealed_skills, [task_id])

    why = "no worker of version gone:b1 answers, which the task runs on; start one with"
    command = "`refold worker --task-queue gone --deployment gone --build-id b1`"
    assert timeless(view.note) == f"{why} {command}"
    assert before.updated_at is not None
    assert view.updated_at == before.updated_at < sealed.start_time, "the server knows since when it waits"
    assert (found[task_id].outcome, timeless(found[task_id].why)) == (Outcome.CANNOT, timeless(view.note))


async def test_a_task_that_its_queues_workers_are_not_given_says_why(
    client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The server gives a task to no version before it is current, and then to that version alone: workers that poll the
    queue get nothing, and whoever looks at the task is told what to do.
    """
    engine = TemporalEngine(client, "given", patience=timedelta(milliseconds=300))
    async with worker(client, values, sealed_skills, "given", "b1", "given"):
        early = await engine.start("pays", text("early tea"))
        while not early.note.startswith("a worker of version"):
            early = await engine.look(early.task_id)
        await make_current(client, "given", "b1")
        patient = TemporalEngine(client, "given", patience=PATIENT)
        begun_since = await patient.look(early.task_id)
    monkeypatch.setattr("refold.temporal.client.errors.POLLING_S", 0)
    async with worker(client, values, sealed_skills, "given", "b2"):
        late = await engine.start("pays", text("late tea"))

    command = "`temporal worker deployment set-current-version --deployment-name given --build-id b1`"
    assert early.note == (
        "a worker of version given:b1 polls task queue 'given', and a version is given no task before it is the "
        f"current one; {command} makes it so"
    )
    assert begun_since.status is Status.INPUT_REQUIRED
    assert timeless(late.note) == (
        "no worker of version given:b1 answers, which task queue 'given' gives its tasks to; start one with "
        "`refold worker --task-queue given --deployment given --build-id b1`"
    )
