"""The trace of a task reads as one story, whatever happens to its workers; and it has nothing that was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from temporalio.client import Client

from refold import Status
from refold.temporal import TemporalEngine
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from refold.temporal.tracing import Tracing, provider_of
from tests.faults.model import Model
from tests.faults.processes import Workers, until
from tests.faults.traced_skills import MENDED, SECRET
from tests.temporal.test_task import settled, text

MODULES = ("tests.faults.traced_skills",)


def spans_in(file: Path) -> list[dict[str, Any]]:
    """The spans of a file, by their beginning."""
    return sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda one: str(one["start_time"]))


async def test_a_story(
    workers: Workers, server: DevServer, values: Path, queue: str, model: Model, tmp_path: Path
) -> None:
    """
    Two workers are killed in a model call, a person decides, a part asks the model, a tool fails, and it is recovered.

    All of it is one trace, over five processes. What was decided is a trace of the approver's own, to which the task's
    span has a link. Neither prompt nor key nor argument nor result nor the text of an error is in it.
    """
    file, mended = tmp_path / "traces.jsonl", tmp_path / "mended"
    workers.env |= {**model.environment, "REFOLD_MODEL": "openai:demo", "REFOLD_LEDGER": str(tmp_path / "ledger.db")}
    workers.env |= {"REFOLD_TRACES": str(file), MENDED: str(mended)}
    client = await Client.connect(
        server.address, data_converter=data_converter(Folder(values)), interceptors=[Tracing(provider_of(str(file)))]
    )
    engine = TemporalEngine(client, queue)
    model.begin(lose=1, times=2)

    first = await workers.start(queue, modules=MODULES)
    task = (await engine.start("traced", text(SECRET), owner="ada")).task_id
    for worker in (first, None):
        await until(model.hangs, bool)
        await (worker or workers.started[-1]).kill()
        await workers.start(queue, modules=MODULES)
    await settled(engine, task)
    await engine.decide(task, approved=True, approver="Ann")
    assert (await settled(engine, task)).status is Status.FAILED
    mended.touch()
    recovered = (await engine.recover(task)).task_id
    assert (await settled(engine, recovered)).status is Status.COMPLETED
    spans = spans_in(file)

    roots = {one["context"]["trace_id"]: one["name"] for one in spans if one["parent_id"] is None}
    assert set(roots.values()) == {"start traced", "send decide"}
    story = next(trace for trace, name in roots.items() if name == "start traced")
    told = [one for one in spans if one["context"]["trace_id"] == story]
    ids = {one["context"]["span_id"] for one in told}
    assert all(one["parent_id"] in ids for one in told if one["parent_id"] is not None), "nobody is an orphan"

    def named(name: str) -> list[dict[str, Any]]:
        return [one for one in told if one["name"] == name]

    greeted = [one for one in named("effect llm") if one["attributes"]["refold.task_id"] == task]
    # A busy machine may lose more attempts than those that were killed.
    assert greeted[-1]["attributes"]["refold.attempt"] >= 3
    assert all(one["attributes"]["refold.resumed"] for one in greeted)
    (asked,) = [one for one in told if one["parent_id"] == greeted[-1]["context"]["span_id"]]
    assert asked["attributes"]["gen_ai.request.model"] == "demo"
    assert asked["attributes"]["gen_ai.usage.output_tokens"] > 0
    (decided,) = named("task receives decide")
    assert [roots[link["context"]["trace_id"]] for link in decided["links"]] == ["send decide"]
    (part,) = named("task starts traced_part")
    inside = [one for one in told if one["attributes"].get("refold.task_id") == part["attributes"]["refold.part"]]
    assert {one["name"] for one in inside} >= {"task running", "effect llm", "task done"}
    assert [one["attributes"].get("error.type") for one in named("execute_tool deliver")] == ["never", None]
    (again,) = [one for one in named("start traced") if one["attributes"]["refold.task_id"] == recovered]
    assert again["links"]
    assert [one["attributes"]["refold.recovers"] for one in told if "refold.recovers" in one["attributes"]] == [task]
    moves = [
        one["name"]
        for one in told
        if one["attributes"].get("refold.task_id") == task and "refold.to" in one["attributes"]
    ]
    assert moves == ["task running", "task paused", "task running", "task failed"]
    assert SECRET not in file.read_text()


async def test_a_task_without_a_trace_has_no_header(
    workers: Workers, engine: TemporalEngine, queue: str, tmp_path: Path
) -> None:
    """
    Workers that trace add nothing to the history of a task that was started without, and make no span of it.
    """
    file = tmp_path / "traces.jsonl"
    workers.env |= {"REFOLD_TRACES": str(file)}
    await workers.start(queue)
    task = (await engine.start("hello", text("Ada"))).task_id
    await settled(engine, task)
    history = await engine.client.get_workflow_handle(task).fetch_history()

    assert "_tracer-data" not in history.to_json()
    assert file.read_text() == ""
