"""A real Prometheus scrapes real processes, in which what the alerts are about is brought about."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from refold import InputRejected, Status, TaskState
from refold.core.fold.journal import Entry
from refold.temporal import TemporalEngine
from refold.temporal.client.index import search
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from tests.faults.alarming_skills import NOBODYS
from tests.faults.conftest import engine_of
from tests.faults.processes import WorkerProcess, Workers, until
from tests.services.prometheus import ROOT, RULES, Prometheus, rules, running
from tests.services.serving import free_port
from tests.temporal.test_task import collected, settled, text

QUEUE = "alerts"
MODULES = ("tests.faults.alarming_skills", "workflows.hello", "activities")
ZERO = " or vector(0)"
ELSEWHERE = {"Recoveries and forks", "Cost", "Code that differs, left to others", "Streams and webhooks"}
"""The panels of what does not happen in these tests."""

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "refold.json"

SECONDS = 3
"""The threshold of alerts about how long something has lasted, in place of minutes and hours."""


def live_rules() -> dict[str, Any]:
    """The repository's rules, with what takes minutes shortened to seconds. promtool tests them as they are."""
    read: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in read["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            if "_seconds" in rule["expr"]:
                rule["expr"] = re.sub(r"> \d+$", f"> {SECONDS}", rule["expr"])
    return read


@dataclass(kw_only=True)
class Stack:
    """What runs.

    Attributes:
        engine: Of the tasks.
        prometheus: Scrapes all of it.
        worker: A worker.
        metrics_at: Where the worker shows its metrics.
        health_at: Where it says whether it can work.
        gateway: The gateway's URL.
        asking: `refold metrics`.
        ledger: The file of receipts.
        workers: Starts more processes.
    """

    engine: TemporalEngine
    prometheus: Prometheus
    worker: WorkerProcess
    metrics_at: str
    health_at: str
    gateway: str
    asking: WorkerProcess
    ledger: Path
    workers: Workers


@pytest.fixture(scope="module")
async def stack(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A worker, a gateway, `refold metrics`, and Prometheus."""
    folder = tmp_path_factory.mktemp("alerts")
    (values := folder / "values").mkdir()
    ledger, places = folder / "ledger.db", [f"127.0.0.1:{free_port()}" for _ in range(4)]
    worker_at, gateway_at, open_at, health_at = places
    engine = await engine_of(server.address, QUEUE, Folder(values))
    env = {"REFOLD_LEDGER": str(ledger)}
    async with Workers(server.address, values, env=env) as workers:
        shown = {"REFOLD_METRICS": worker_at, "REFOLD_HEALTH": health_at}
        worker = await workers.start(QUEUE, modules=MODULES, env=shown, doomed=True)
        at = ["--address", server.address, "--task-queue", QUEUE, "--json", "--with-parent"]
        asking = ["refold.cli", "metrics", open_at, "--every", "1", "--queue", NOBODYS, *at]
        gateway = ["refold.cli", "serve", *MODULES, "--port", "0", "--metrics", gateway_at, *at]
        open_tasks = await workers.launch(asking, doomed=True)
        served = await workers.launch(gateway, doomed=True)
        for process in (worker, open_tasks, served):
            await process.until_ready()
        async with running(folder, [worker_at, gateway_at, open_at], live_rules()) as prometheus:
            async with httpx.AsyncClient() as http:
                await http.get(f"{served.about['card']}")
            yield Stack(
                engine=engine, prometheus=prometheus, worker=worker, metrics_at=worker_at, health_at=health_at,
                gateway=served.about["url"], asking=open_tasks, ledger=ledger, workers=workers,
            )  # fmt: skip


async def start(stack: Stack, what: str) -> str:
    return (await stack.engine.start("alarming", text(what))).task_id


async def rings(stack: Stack, *alerts: str) -> None:
    """Wait until these alerts fire."""
    await until(stack.prometheus.firing, lambda found: set(alerts) <= found)


async def test_all_is_quiet(stack: Stack) -> None:
    """
    With a worker that polls and tasks that complete, only the queue that nobody polls rings.
    """
    view = await stack.engine.start("hello", text("Ada"))
    assert (await settled(stack.engine, view.task_id)).status is Status.COMPLETED
    await until(lambda: stack.prometheus.query('refold_tasks_ended_total{ending="completed",skill="hello"} == 1'), bool)
    await rings(stack, "RefoldNoWorker")
    await until(lambda: stack.prometheus.query("refold_queue_pollers == 1"), lambda found: len(found) == 2)

    await until(stack.prometheus.firing, lambda found: found == {"RefoldNoWorker"})


async def test_tasks_that_stay_where_they_are(stack: Stack) -> None:
    """
    Each alert about a task that is stuck rings once the task has been in its state for so long, and not before; so do
    those about work that no worker takes, and about a task whose skill no worker knows.
    """
    before = await stack.prometheus.firing()
    stuck = [await start(stack, what) for what in ("run", "pause", "block", "retry")]
    nobody = TemporalEngine(stack.engine.client, NOBODYS)
    stuck.append((await nobody.start("alarming", text("run"))).task_id)
    stuck.append(await start(stack, "elsewhere"))
    stuck.append(await unknown(stack))
    wanted = {
        "RefoldTaskRunningTooLong": "running",
        "RefoldTaskPausedAbandoned": "paused",
        "RefoldTaskBlockedProlonged": "blocked",
        "RefoldTaskNotTaken": "untaken",
    }
    beside = {"RefoldTaskRetryFlapping", "RefoldQueueOld", "RefoldWorkflowTaskFails"}
    await rings(stack, *wanted, *beside)

    assert not before & {*wanted, *beside}
    for alert, state in wanted.items():
        since = f'min_over_time(refold_oldest_task_seconds{{state="{state}"}}[1m])'
        rang = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        assert await stack.prometheus.query(f"{since} <= {SECONDS}"), state  # it was there, and did not ring
        assert await stack.prometheus.query(rang)
    for task_id in stuck:
        await stack.engine.client.get_workflow_handle(task_id).terminate()


async def unknown(stack: Stack) -> str:
    """A task of a skill that no worker has."""
    shown = search.at_start("nobodys", datetime.now(UTC), task_id="nobodys", owner=None, context=None)
    handle = await stack.engine.client.start_workflow(
        "nobodys", "x", id="nobodys", task_queue=QUEUE, search_attributes=shown
    )
    return handle.id


async def test_tasks_that_fail(stack: Stack) -> None:
    """
    Many failures, refused calls, a lost effect and one that stays each ring their alert.
    """
    before = await stack.prometheus.firing()
    failed, asks = [await start(stack, "fail") for _ in range(12)], await start(stack, "pause")
    await settled(stack.engine, asks)
    for task_id in failed:
        await settled(stack.engine, task_id)
        with pytest.raises(InputRejected):
            await stack.engine.send(asks, text("go on"), slot="nothing")
    await settled(stack.engine, await start(stack, "sell"))
    lost = await start(stack, "lost")
    await until(lambda: stack.engine.look(lost), lambda view: view.lifecycle is TaskState.BLOCKED)
    alerts = {
        "RefoldTooManyFailedTasks", "RefoldInvalidTransitionSpike", "RefoldEffectNotUndone", "RefoldOutcomeUnknown",
    }  # fmt: skip
    await rings(stack, *alerts)

    assert not before & alerts


async def test_a_ledger_that_is_away(stack: Stack) -> None:
    """
    While another process holds the ledger, effects with receipts wait, and the receipt of one that took place meanwhile
    is owed. Both alerts ring, and the worker is not ready; then all goes on by itself.
    """
    gate = stack.ledger.parent / "gate"
    async with httpx.AsyncClient(base_url=f"http://{stack.health_at}") as http:
        ready = partial(http.get, "/readyz", timeout=10)
        await until(ready, lambda answer: answer.status_code == 200)
        owing = await start(stack, str(gate))
        holder = sqlite3.connect(stack.ledger, isolation_level=None)
        await until(partial(executing, stack.ledger), bool)
        holder.execute("BEGIN IMMEDIATE")
        waiting = await start(stack, "send")
        gate.touch()
        unready = await until(
            lambda: http.get("/readyz", timeout=10), lambda answer: answer.status_code == 503, within_s=10
        )
        await rings(stack, "RefoldLedgerAway", "RefoldReceiptsOwed")
        holder.execute("ROLLBACK")
        holder.close()
        for task_id in (waiting, owing):
            assert (await settled(stack.engine, task_id)).status is Status.COMPLETED
        await until(ready, lambda answer: answer.status_code == 200, within_s=10)

    assert unready.text.startswith("ledger: ")


async def executing(ledger: Path) -> list[Any]:
    """The receipts of effects that are being performed."""
    with closing(sqlite3.connect(ledger)) as db:
        return db.execute("SELECT key FROM refold_receipts WHERE state = 'executing'").fetchall()


async def test_a_server_that_hangs(stack: Stack, server: DevServer) -> None:
    """
    While the server does not answer, neither worker nor gateway is ready, and both say so within ten seconds; both stay
    alive, and are ready again by themselves.
    """
    places = [f"http://{stack.health_at}", stack.gateway]
    async with httpx.AsyncClient(timeout=10) as http:

        async def ready() -> list[int]:
            return [(await http.get(f"{place}/readyz")).status_code for place in places]

        await until(ready, lambda found: found == [200, 200])
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await until(ready, lambda found: found == [503, 503], within_s=10)
            alive = [(await http.get(f"{place}/livez")).status_code for place in places]
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await until(ready, lambda found: found == [200, 200])

    assert alive == [200, 200]


async def test_a_storage_that_is_gone(stack: Stack) -> None:
    """
    Without the folder for large values a worker is not ready, and names it; it holds a large result, which is an alert,
    until the folder is back.
    """
    folder, away = stack.ledger.parent / "values", stack.ledger.parent / "values-away"
    async with httpx.AsyncClient(base_url=f"http://{stack.health_at}", timeout=10) as http:
        folder.rename(away)
        large = await start(stack, "much")
        await rings(stack, "RefoldStorageAway")
        unready = await until(partial(http.get, "/readyz"), lambda answer: answer.status_code == 503, within_s=10)
        away.rename(folder)
        await until(partial(http.get, "/readyz"), lambda answer: answer.status_code == 200, within_s=10)
    done = await settled(stack.engine, large)

    assert unready.text.startswith("storage: ")
    assert done.status is Status.COMPLETED


async def test_each_panel_has_data(stack: Stack) -> None:
    """
    Every query of the dashboard gives data, after what has happened here; where it draws zero until something happens,
    that is not all that it can draw.
    """
    panels = [one for one in json.loads(DASHBOARD.read_text())["panels"] if one["type"] != "row"]
    queries = {f"{one['title']}: {each['expr']}": each["expr"] for one in panels for each in one["targets"]}
    answered = await start(stack, "pause")
    for _ in range(2):
        await settled(stack.engine, answered)
        await stack.engine.send(answered, text("more"))

    async def empty() -> list[str]:
        shown = {name: one.replace("$__rate_interval", "5m") for name, one in queries.items()}
        asked = {name: one if name.split(":")[0] in ELSEWHERE else one.replace(ZERO, "") for name, one in shown.items()}
        return [name for name, expression in asked.items() if not await stack.prometheus.query(expression)]

    assert len(panels) > 20
    await until(empty, lambda found: not found)  # a rate needs two scrapes


async def test_the_alerts_say_what_they_mean(stack: Stack) -> None:
    """
    Each summary of an alert that fires could be written, with its values.
    """
    alerts = await stack.prometheus.alerts()
    told = {one["labels"]["alertname"]: one["annotations"]["summary"] for one in alerts}

    assert told
    assert [one for one in told.values() if "error" in one or "{{" in one] == []
    assert {rule["alert"] for rule in rules()} >= set(told)


async def test_a_killed_worker_counts_nothing_twice(stack: Stack) -> None:
    """
    SIGKILL between two steps: what the killed worker counted and what its successor counts is the journal, and no more.
    Prometheus notices that the process is gone.
    """
    task_id = await start(stack, "pause")
    await settled(stack.engine, task_id)
    before = await shown(stack.metrics_at)
    await stack.worker.kill()
    await rings(stack, "RefoldProcessDown")
    successor_at = f"127.0.0.1:{free_port()}"
    await stack.workers.start(QUEUE, modules=MODULES, env={"REFOLD_METRICS": successor_at})
    for _ in range(2):
        await settled(stack.engine, task_id)
        await stack.engine.send(task_id, text("more"))
    ended = await settled(stack.engine, task_id)
    after = await shown(successor_at)
    entries = await collected(stack.engine.journal(task_id))

    assert ended.status is Status.COMPLETED
    assert after == moves(entries[1:])  # the first entry is the killed worker's
    assert before >= moves(entries[:1])


async def shown(at: str) -> Counter[tuple[str, str]]:
    """The transitions of the skill that a worker shows."""
    async with httpx.AsyncClient() as http:
        told = (await http.get(f"http://{at}/metrics")).text
    found = Counter[tuple[str, str]]()
    for line in told.splitlines():
        if line.startswith("refold_transitions_total{") and 'skill="alarming"' in line:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[labels["from"], labels["to"]] += int(line.rpartition(" ")[2])
    return found


def moves(entries: list[Entry]) -> Counter[tuple[str, str]]:
    return Counter((one.from_state.value, one.to_state.value) for entry in entries for one in entry.moves)


async def test_nobody_asks_for_open_tasks(stack: Stack) -> None:
    """
    Without `refold metrics` no stuck task would ring, so its absence does.
    """
    await stack.asking.kill()
    await rings(stack, "RefoldOpenTasksUnknown")
