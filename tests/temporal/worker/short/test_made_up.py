"""Made-up skills, with all that a task can do: the same journal whichever way its effects take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from temporalio.client import Client, WorkflowFailureError

from refold import Content
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected
from tests.temporal.worker.short import made_up
from tests.temporal.worker.short.made_up import TOOLS, VERBS, made

PROGRAMS = st.lists(st.sampled_from(VERBS), min_size=1, max_size=9)
TIME = re.compile(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d([0-9.]+)?(Z|\+00:00)?")

Ways = dict[str, TemporalEngine]


@pytest.fixture(scope="module")
async def ways(client: Client, values: Folder, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ways]:
    """A worker of each way; one ledger."""
    folder: Path = tmp_path_factory.mktemp("ways")
    async with AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REFOLD_LEDGER", str(folder / "receipts.db"))
            found = {}
            for way in ("history", "ledger"):
                plugin = RefoldPlugin([made_up], TOOLS, model="scripted:demo", storage=values, durability=way)
                await stack.enter_async_context(make_worker(client, plugin, task_queue=f"made-up-{way}"))
                found[way] = TemporalEngine(client, f"made-up-{way}", patience=PATIENT)
            yield found


async def played(engine: TemporalEngine, verbs: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """A task's journal without ids and times, and how often each of its effects, and its parts', took place."""
    view = await engine.start("made_up", Content.from_data({"verbs": list(verbs)}))
    while view.lifecycle not in ("done", "failed"):
        async for _ in engine.watch(view.task_id):
            pass
        view = await engine.look(view.task_id)
        for wait in view.waiting_for:
            if wait.slot.startswith("gate"):
                await engine.decide(view.task_id, wait.gate, approved=True, approver="ada")
            else:
                await engine.send(view.task_id, Content.from_text("a word"))
    with suppress(WorkflowFailureError):
        await engine.client.get_workflow_handle(view.task_id).result()  # once all is undone
    entries = await collected(engine.journal(view.task_id))
    journal = [entry.model_dump_json(exclude={"at"}).replace(view.task_id, "TASK") for entry in entries]
    ours = {key: times for key, times in made.items() if key[0].startswith(view.task_id)}
    effects = Counter({f"{task[len(view.task_id) :]} {what}": times for (task, what), times in ours.items()})
    return [TIME.sub("TIME", line) for line in journal], effects


async def test_what_the_made_up_skill_does(ways: Ways) -> None:
    """
    Each verb does what its name says, so that something is compared.
    """
    journal, effects = await played(ways["ledger"], [verb for verb in VERBS if verb != "fail"])

    assert len(journal) > 25
    assert '"status":"completed"' in journal[-1]
    assert effects


async def the_same(ways: Ways, verbs: Sequence[str]) -> None:
    regular, performed = await played(ways["history"], verbs)
    short, also = await played(ways["ledger"], verbs)

    assert short == regular
    assert also == performed


@example(verbs=[verb for verb in VERBS if verb != "fail"])
@example(verbs=["takes", "takes", "ask", "takes", "fail"])
@given(verbs=PROGRAMS)
@settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
async def test_the_same_journal_either_way(ways: Ways, verbs: list[str]) -> None:
    """
    Receipts, keys, retries, blocked commands, compensation, parts, people: the same entries but for the times, and each
    effect as often.
    """
    await the_same(ways, verbs)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@given(verbs=PROGRAMS)
@settings(
    max_examples=150 if THOROUGH else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
async def test_the_same_journal_either_way_many_times(ways: Ways, verbs: list[str]) -> None:
    """
    The same, sixty times, or more where there is time (REFOLD_SWEEP=all).
    """
    await the_same(ways, verbs)
