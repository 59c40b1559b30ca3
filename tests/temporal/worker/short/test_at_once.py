"""Made-up effects at once, raced, failing and given up, with results of all sizes: no order of theirs breaks a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from temporalio.client import Client
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Replayer

from refold import Content
from refold.effects.short import stretch
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal.conftest import PATIENT
from tests.temporal.worker.short import at_once
from tests.temporal.worker.short.at_once import TOOLS

SIZES = st.sampled_from([1, 40, 9_000, 17_000, 20_000])
ONE = st.one_of(
    SIZES,
    st.just(-1),
    st.just(["breaks"]),
    st.lists(SIZES, min_size=2, max_size=4).map(lambda sizes: ["race", *sizes]),
)


def together(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    plans = st.lists(st.lists(one, min_size=1, max_size=3), min_size=2, max_size=5)
    return st.tuples(st.sampled_from([0, 0, 2]), plans).map(lambda found: ["all", found[0], *found[1]])


PLANS = together(st.recursive(ONE, together, max_leaves=12))

TWO_LARGE = ["all", 2, [["race", 20_000, 17_000]], [-1, ["race", 17_000, 17_000], ["race", 9_000, 17_000]]]


AT_ONCE = 4
"""How many tasks do the same at once: on a busier worker more comes in another order."""


class Slowly(Interceptor):
    """Whatever brings an outcome takes a while, now longer, now shorter: in another order than it was asked for."""

    def __init__(self) -> None:
        self.delays = cycle([0.0, 0.02, 0.0, 0.002, 0.01])

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        delays = self.delays

        class Slow(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                await asyncio.sleep(delays.__next__())
                return await self.next.execute_activity(input)

        return Slow(next)


class Made:
    """A worker, and what its tasks have come to."""

    def __init__(self, client: Client, queue: str, plugin: Callable[[], RefoldPlugin]) -> None:
        self._engine = TemporalEngine(client, queue, patience=PATIENT)
        self._plugin = plugin

    async def holds(self, plan: list[Any]) -> None:
        """Some tasks at once do what a plan says, in one go, and again in a replay."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._one_holds(plan))

    async def _one_holds(self, plan: list[Any]) -> None:
        view = await self._engine.start("at_once", Content.from_data({"plan": [plan]}))
        handle = self._engine.client.get_workflow_handle(view.task_id)
        await handle.result()
        history = await handle.fetch_history()
        failed = [one.workflow_task_failed_event_attributes.failure.message for one in history.events]

        assert [message for message in failed if "TMPRL1100" in message] == []
        await Replayer(workflows=[], plugins=[self._plugin()]).replay_workflow(history)


@pytest.fixture(scope="module", params=[stretch.ENOUGH_S, 1e-9], ids=["quick code", "slow code"])
async def made(
    client: Client, values: Folder, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Made]:
    """With code that computes for long, too, each record holds little, and the next one follows at once."""
    folder: Path = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "ENOUGH_S", request.param)
        patch.setenv("REFOLD_LEDGER", str(folder / "receipts.db"))
        plugin = partial(RefoldPlugin, [at_once], TOOLS, model="scripted:demo", storage=values)
        queue = f"at-once-{request.param}"
        async with make_worker(client, plugin(), task_queue=queue, interceptors=[Slowly()]):
            yield Made(client, queue, plugin)


@example(plan=TWO_LARGE)
@given(plan=PLANS)
@settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
async def test_no_order_of_outcomes_breaks_a_task(made: Made, plan: list[Any]) -> None:
    """
    Whatever comes first, fails, is large, or is given up: the worker's history is one that any worker can replay.
    """
    await made.holds(plan)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@given(plan=PLANS)
@settings(
    max_examples=400 if THOROUGH else 80,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
async def test_no_order_of_outcomes_breaks_a_task_many_times(made: Made, plan: list[Any]) -> None:
    """
    The same, many times.
    """
    await made.holds(plan)
