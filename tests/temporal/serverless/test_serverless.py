"""Workers that do not stay: a fresh process for each effect, and what each leaves to the next."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pydantic import JsonValue
from temporalio.client import Client
from temporalio.contrib.aws.lambda_worker import LambdaWorkerConfig

from refold import Content, DefinitionError, Status
from refold.core.lifecycle import TERMINAL
from refold.engine import NotConnected, TaskFilter, TaskView
from refold.temporal import TemporalEngine, lambda_handler
from refold.temporal.dev import DevServer
from tests.services.mail import MailServer
from tests.services.shop import Shop
from tests.temporal.conftest import PATIENT
from tests.temporal.serverless.handler import BUILD, DEPLOYMENT
from tests.temporal.upgrade.test_upgrade import make_current
from workflows import hello

ROOT = Path(__file__).parents[3]
MOST, WHOLE = 300, 40
DRAIN = ("-m", "refold.cli", "worker", "--drain", "--log-json")


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with MailServer() as mail:
        yield mail


class Processes:
    """Runs one process after the other, each with a fresh memory."""

    def __init__(self, server: DevServer, folder: Path, *more: dict[str, str]) -> None:
        self.environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": server.address,
            "REFOLD_LEDGER": f"sqlite:///{folder / 'ledger.db'}",
            "REFOLD_STORAGE": str(folder),
        }
        for one in more:
            self.environment |= one
        self.count = 0

    async def run(self, *words: str) -> tuple[int, str]:
        self.count += 1
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, cwd=ROOT, env=self.environment, stdout=-1, stderr=-1
        )
        out, err = await process.communicate()
        return process.returncode or 0, (out + err).decode()


async def start(client: Client, queue: str, steps: int) -> tuple[TemporalEngine, str]:
    """An errand, which no worker has taken."""
    engine = TemporalEngine(client, queue, patience=PATIENT / 120)
    errand: dict[str, JsonValue] = {"order_id": "A1", "amount_cents": 500, "customer": "a1@example.org", "steps": steps}
    return engine, (await engine.start("forty_steps", Content.from_data(errand))).task_id


def paid_once(shop: Shop, mail: MailServer, view: TaskView, steps: int) -> None:
    """A whole errand charges the card; one of two steps only writes a mail."""
    assert view.status is Status.COMPLETED, view
    assert (len(shop.paid("charge")), len(mail.accepted)) == (int(steps == WHOLE), 1)


async def run_out(processes: Processes, engine: TemporalEngine, task_id: str, *words: str) -> TaskView:
    """The task, in the end of as many processes as it takes."""
    view = await engine.look(task_id)
    while view.lifecycle not in TERMINAL:
        code, said = await processes.run(*words)
        assert code == 0, said
        assert processes.count < MOST, view
        view = await engine.look(task_id)
    return view


ERRANDS = pytest.mark.parametrize(("steps", "effects"), [(2, "1"), (WHOLE, "10")], ids=["short", "whole"])
"""How long an errand is, and the most effects of a process."""


@pytest.mark.sweep
@ERRANDS
async def test_an_errand_in_processes_that_end(
    server: DevServer, client: Client, shop: Shop, mail: MailServer, tmp_path: Path, steps: int, effects: str
) -> None:
    """
    `refold worker --drain`: nothing is lost between them, nothing is done twice.
    """
    queue = f"drained-{uuid4().hex[:6]}"
    engine, task_id = await start(client, queue, steps)
    processes = Processes(server, tmp_path, shop.environment, mail.environment)

    view = await run_out(processes, engine, task_id, *DRAIN, "--effects", effects, "--task-queue", queue)

    paid_once(shop, mail, view, steps)
    assert processes.count > 1


@pytest.mark.sweep
@ERRANDS
async def test_an_errand_in_calls_of_a_function(
    server: DevServer, client: Client, shop: Shop, mail: MailServer, tmp_path: Path, steps: int, effects: str
) -> None:
    """
    A handler for AWS Lambda: a fresh process for each event, and few effects in each.
    """
    queue = f"called-{uuid4().hex[:6]}"
    engine, task_id = await start(client, queue, steps)
    processes = Processes(server, tmp_path, shop.environment, mail.environment)
    call = ("-m", "tests.temporal.serverless.handler", queue, effects)

    (code, said), _ = await asyncio.gather(processes.run(*call), make_current(client, DEPLOYMENT, BUILD))
    assert code == 0, said
    view = await run_out(processes, engine, task_id, *call)

    paid_once(shop, mail, view, steps)
    assert processes.count > 1


async def test_a_worker_leaves_what_waits(server: DevServer, client: Client, tmp_path: Path) -> None:
    """
    For a person, or for a day; an answer is in the queue, and the next worker takes it.
    """
    queue = f"waits-{uuid4().hex[:6]}"
    engine = TemporalEngine(client, queue, patience=PATIENT / 120)
    talk, patient = [(await engine.start(skill, Content.from_text("go"))).task_id for skill in ("talk", "patient")]
    processes = Processes(server, tmp_path)
    call = (*DRAIN, "tests.temporal.skills", "--task-queue", queue)

    first = await processes.run(*call)
    await client.get_workflow_handle(talk).signal("message", "Ada")
    second = await processes.run(*call)

    assert (first[0], second[0]) == (0, 0), (first, second)
    found = json.loads(next(line for line in first[1].splitlines() if "queue_empty" in line))
    assert found["left"] == 0
    listed = {one.task_id: one.status for one in await engine.find(TaskFilter(), limit=100)}
    assert (listed[talk], listed[patient]) == (Status.INPUT_REQUIRED, Status.WORKING)
    for task_id in (talk, patient):
        await client.get_workflow_handle(task_id).terminate()


@pytest.mark.parametrize("given", [{"deployment": "", "build_id": "b1"}, {"deployment": "shop", "build_id": ""}])
def test_a_function_names_its_version(given: dict[str, str]) -> None:
    """
    The server gives tasks to named versions only.
    """
    with pytest.raises(DefinitionError, match="named versions only"):
        lambda_handler([hello], **given)  # type: ignore[arg-type]  # mypy takes them for options, too


def call(handler: Callable[[Any, Any], None]) -> None:
    handler({}, SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000))


def test_a_function_names_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No server runs beside a function, so none is assumed.
    """
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    handler = lambda_handler([hello], deployment="shop", build_id="b1")

    with pytest.raises(NotConnected, match="set TEMPORAL_ADDRESS"):
        call(handler)


async def plainly(config: LambdaWorkerConfig) -> None:
    config.client_connect_config["target_host"] = "localhost:1"


async def generated(config: LambdaWorkerConfig) -> AsyncIterator[None]:
    config.client_connect_config["target_host"] = "localhost:1"
    yield


@pytest.mark.parametrize("configure", [plainly, generated, asynccontextmanager(generated)])
def test_settings_are_changed_in_each_form_of_the_sdk(
    configure: Callable[[LambdaWorkerConfig], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An `async def` is awaited: settings that nobody applies would leave the function without them.
    """
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    handler = lambda_handler([hello], deployment="shop", build_id="b1", configure=configure)

    with pytest.raises(RuntimeError, match="connect error"):
        call(handler)


def test_a_function_traces(tmp_path: Path) -> None:
    """
    `REFOLD_TRACES` holds for a function as for any worker, and is read as strictly.
    """
    code = (
        "from types import SimpleNamespace; from refold.temporal import lambda_handler; from workflows import hello; "
        "lambda_handler([hello], deployment='shop', build_id='b1')"
        "({}, SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000))"
    )
    environment = {**os.environ, "TEMPORAL_ADDRESS": "localhost:1", "REFOLD_TRACES": str(tmp_path / "none" / "traces")}

    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert "traces 'REFOLD_TRACES' cannot be defined" in ended.stderr


FROZEN = """
import os, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from refold.temporal import lambda_handler
from refold.temporal.tracing import tracing_from_env
from workflows import hello

class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        sent = self.rfile.read(int(self.headers["content-length"]))
        print(self.path, b"made before the call failed" in sent, flush=True)
        self.send_response(200)
        self.end_headers()

collector = HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=collector.serve_forever, daemon=True).start()
os.environ |= {"REFOLD_TRACES": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}"}
os.environ |= {"OTEL_EXPORTER_OTLP_COMPRESSION": "none", "OTEL_BSP_SCHEDULE_DELAY": "600000"}

def configure(config):
    tracing_from_env().provider.get_tracer("a-test").start_span("made before the call failed").end()

try:
    handler = lambda_handler([hello], deployment="shop", build_id="b1", configure=configure)
    handler({}, SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000))
finally:
    os._exit(0)
"""


def test_a_call_sends_its_spans_before_it_returns() -> None:
    """
    Also one that fails: a function is frozen then, and may never be called again.
    """
    environment = {**os.environ, "TEMPORAL_ADDRESS": "localhost:1"}

    ended = subprocess.run(
        [sys.executable, "-c", FROZEN], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )

    assert ended.stdout == "/v1/traces True\n"
