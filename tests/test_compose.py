"""docker-compose.yml is sound, and what its services run does what the file says.

No container is started. Whatever runs inside one is run here instead, against the embedded Temporal
server, or against the nearest thing to it that Python packages bring; `RUN_HERE` and `NOT_RUN_HERE`
hold every command, so that a new one cannot be forgotten.
"""

import asyncio
import contextlib
import importlib.resources
import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from refold.a2a.serve import CUT_S, DRAIN_S
from refold.cli.misspelled import SETTINGS
from refold.temporal import dev
from refold.temporal.worker.run import GRACE_S
from tests.services.serving import free_port

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
TEMPORAL = Path(sys.executable).parent / "temporal"

ATTRIBUTES = {
    "RefoldContext": "Keyword",
    "RefoldOrigin": "Keyword",
    "RefoldOwner": "Keyword",
    "RefoldSkill": "Keyword",
    "RefoldState": "Keyword",
    "RefoldStateAt": "Datetime",
    "RefoldStatus": "Keyword",
    "RefoldStatusAt": "Datetime",
}

RUN_HERE = {
    "schema": "/bin/sh /deploy/schema.sh",
    "namespace": "/bin/sh /deploy/namespace.sh",
    "ui health": "wget -q -O /dev/null http://127.0.0.1:8080/healthz",
    "worker": "python worker.py",
    "worker health": "python deploy/worker_health.py",
    "gateway": "refold serve --host 0.0.0.0 --page",
    "gateway health": "python -c 'import urllib.request as it; it.urlopen('\"'\"'http://127.0.0.1:9000/readyz'\"'\"')'",
    "open-tasks": "refold metrics 0.0.0.0:9464",
    "open-tasks health": "python -c 'import urllib.request as it; it.urlopen('\"'\"'http://127.0.0.1:9464/metrics'\"'\"')'",
}
NOT_RUN_HERE = {
    # PostgreSQL's own client; nothing of ours.
    "postgresql health": "pg_isready --quiet --host=127.0.0.1 --username=temporal",
    # Opens one TCP connection; nothing of ours.
    "temporal health": "nc -z 127.0.0.1 7233",
    # Prometheus' and Grafana's own; tests/faults/test_alerts.py runs Prometheus with these rules.
    "prometheus health": "wget -q -O /dev/null http://127.0.0.1:9090/-/ready",
    "grafana health": "wget -q -O /dev/null http://127.0.0.1:3000/api/health",
}


NOT_PASSED = {
    # Of people at a command line.
    "REFOLD_APPROVER",
    # Of the codec server, which is no service of the file.
    *(name for name in SETTINGS if name.startswith("REFOLD_CODEC_")),
}
FIXED = {
    # Where the volumes are, and the ports inside the network of these containers.
    "REFOLD_STORAGE",
    "REFOLD_LEDGER",
    "REFOLD_LEDGER_SINGLE_HOST",
    "REFOLD_METRICS",
    "REFOLD_HEALTH",
}
ALIKE = {"REFOLD_TASK_QUEUE", "REFOLD_CODEC", "REFOLD_ENCRYPTION_KEYS", "REFOLD_SEARCH_KEY", "REFOLD_TRACES"}
"""Settings that the docs want alike in all processes; without the codec's, a container would write plain text."""


def commands() -> dict[str, str]:
    """Every command line that the file gives, by service; health checks apart."""
    found: dict[str, str] = {}
    for name, service in SERVICES.items():
        own = [*service.get("entrypoint", []), *service.get("command", [])]
        if own:
            found[name] = shlex.join(own)
        if "healthcheck" in service:
            kind, *check = service["healthcheck"]["test"]
            assert kind == "CMD", f"{name}: no shell is needed between Docker and the check"
            found[f"{name} health"] = shlex.join(check)
    return found


def one_shots() -> set[str]:
    """Services that someone waits for to end."""
    return {
        awaited
        for service in SERVICES.values()
        for awaited, wait in service.get("depends_on", {}).items()
        if wait["condition"] == "service_completed_successfully"
    }


def test_the_file_follows_the_compose_schema() -> None:
    """
    What `docker compose` would refuse to read does not land.
    """
    schemas = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())

    jsonschema.validate(COMPOSE, schema)


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    """
    An image has a tag that names one release.
    """
    assert re.fullmatch(r"[\w./-]+:v?\d+(\.\d+)+(-[\w.]+)?", SERVICES[name]["image"])


def test_the_worker_image_is_pinned_and_of_this_version() -> None:
    """
    What we build ourselves stands on a pinned image and carries refold's own version. Each service has a name of its
    own for it, since builds go on side by side.
    """
    dockerfile = (ROOT / "Dockerfile").read_text()
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert re.search(r"^FROM python:3\.\d+\.\d+-slim-\w+$", dockerfile, re.MULTILINE)
    assert version is not None
    built = [(name, service["image"]) for name, service in SERVICES.items() if "build" in service]
    assert len({image for _, image in built}) == len(built) == 3
    assert all(re.fullmatch(rf"refold-\w+:{re.escape(version[1])}", image) for _, image in built)


def test_the_worker_is_not_process_1() -> None:
    """
    Python ignores SIGTERM there until the worker handles it; no service replaces what is.
    """
    assert 'ENTRYPOINT ["tini", "--"]' in (ROOT / "Dockerfile").read_text().splitlines()
    assert not any("entrypoint" in one for one in SERVICES.values() if "build" in one)


def test_changed_code_is_built() -> None:
    """
    An image of this name and version that is there already would be used as it is.
    """
    assert {one["pull_policy"] for one in SERVICES.values() if "build" in one} == {"build"}


def test_what_the_dockerfile_copies_exists_and_is_let_through() -> None:
    """
    A build finds every folder that it copies, and .dockerignore hides none of them.
    """
    dockerfile = (ROOT / "Dockerfile").read_text()
    sources = {
        source.removeprefix("./")
        for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text().splitlines()

    assert {source for source in sources if f"!{source}" not in ignored} == set()
    assert {source for source in sources if not (ROOT / source).exists()} == set()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_when_it_is_ready(name: str) -> None:
    """
    A service has a health check, or it ends and someone waits for that.
    """
    assert ("healthcheck" in SERVICES[name]) != (name in one_shots())


@pytest.mark.parametrize("name", SERVICES)
def test_services_start_when_what_they_need_is_ready(name: str) -> None:
    """
    Nothing depends on a service that has merely started, or on one that is not there.
    """
    for awaited, wait in SERVICES[name].get("depends_on", {}).items():
        ends = awaited in one_shots()
        assert wait["condition"] == ("service_completed_successfully" if ends else "service_healthy")
        assert awaited in SERVICES


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_come_from_the_environment(name: str) -> None:
    """
    No secret has a value in the file: it is asked for, or passed through.
    """
    secret = re.compile(r"PASSWORD|PWD|SECRET|TOKEN|CREDENTIAL|_KEY$")
    for variable, value in SERVICES[name].get("environment", {}).items():
        if secret.search(variable):
            assert value is None or re.fullmatch(r"\$\{(\w+):\?set \1\}", value), variable


def test_every_setting_reaches_the_containers_that_read_it() -> None:
    """
    What is exported and not passed on would be ignored in silence.
    """
    given = {name: service.get("environment", {}) for name, service in SERVICES.items()}
    own = [name for name, service in SERVICES.items() if service["image"].startswith("refold-")]
    passed = {
        variable
        for environment in given.values()
        for variable, value in environment.items()
        if value is None or value.startswith(f"${{{variable}:-")
    }

    assert SETTINGS - passed == NOT_PASSED | FIXED
    assert {name: ALIKE - given[name].keys() for name in own} == {name: set() for name in own}
    assert {variable for name in own for variable in given[name] if variable.startswith("REFOLD_")} <= SETTINGS
    assert given["worker"].keys() & given["gateway"].keys() >= {"REFOLD_APPROVAL_KEY", "REFOLD_CALLBACK_KEY"}


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_on_this_machine_alone(name: str) -> None:
    """
    Neither the server nor its UI asks who is there, so nobody else may come.
    """
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_mounted_files_exist() -> None:
    """
    A host path that is missing would be made as an empty folder by Docker.
    """
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    for source in {mount.split(":")[0] for mount in mounts}:
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_the_worker_keeps_large_values_on_a_volume() -> None:
    """
    Another worker must be able to read what this one stored.
    """
    worker = SERVICES["worker"]

    assert f"values:{worker['environment']['REFOLD_STORAGE']}" in worker["volumes"]


@pytest.mark.parametrize(("name", "takes_s"), [("worker", GRACE_S), ("gateway", DRAIN_S + CUT_S)])
def test_a_service_may_finish_what_it_does(name: str, takes_s: float) -> None:
    """
    Docker kills what has not ended after 10 s, unless the file says otherwise.
    """
    assert float(SERVICES[name].get("stop_grace_period", "10s").removesuffix("s")) >= takes_s + 5


def test_every_command_is_accounted_for() -> None:
    """
    A command of the file is run by a test below, or named with the reason why not.
    """
    assert commands() == {**RUN_HERE, **NOT_RUN_HERE}


def test_server_and_ui_are_those_that_the_tests_run() -> None:
    """
    The embedded server, the cluster and its tools are one version.
    """
    embedded = subprocess.run([TEMPORAL, "--version"], check=True, capture_output=True, text=True)
    version = re.search(r"Server ([\d.]+), UI ([\d.]+)", embedded.stdout)

    assert version is not None
    assert {name: SERVICES[name]["image"] for name in ("schema", "temporal", "namespace", "ui")} == {
        "schema": f"temporalio/admin-tools:{version[1]}",
        "temporal": f"temporalio/server:{version[1]}",
        "namespace": f"temporalio/admin-tools:{version[1]}",
        "ui": f"temporalio/ui:{version[2]}",
    }


NOT_SET = {
    # Only where one machine's clock counts; those of a cluster's servers differ.
    "history.timerProcessorMaxTimeShift",
}


def test_the_server_is_set_as_refold_dev_sets_its_own() -> None:
    """
    What is tried there is so here, too.
    """
    arguments = dev._arguments(7233, None, None, "default", False, {}, {})
    options = pairwise(arguments)
    tried = dict(value.split("=") for option, value in options if option == "--dynamic-config-value")
    here = yaml.safe_load((ROOT / "deploy" / "temporal.yaml").read_text())

    assert {key: json.loads(value) for key, value in tried.items() if key not in NOT_SET} == {
        key: setting["value"] for key, [setting] in here.items()
    }


def run(service: str, command: str, extra: dict[str, str], path: Path) -> str:
    """Run a service's command with its environment as the file gives it, the defaults filled in.

    Args:
        service: Whose environment it gets.
        command: As in the file; /deploy is where the file mounts deploy/.
        extra: What is different outside of Docker, such as an address.
        path: The folder where the image would have its programs.

    Returns:
        Standard output. The test fails with standard error if the command does.
    """
    given = SERVICES[service].get("environment", {})
    environment = {key: value for key, value in given.items() if value is not None}
    for key in environment:
        while (filled := re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", environment[key])) != environment[key]:
            environment[key] = filled  # a default may have a default in it
    done = subprocess.run(
        shlex.split(command.replace("/deploy/", "deploy/")),
        cwd=ROOT,
        env={**environment, **extra, "PATH": f"{path}{os.pathsep}{os.defpath}"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_posix_shell(script: Path) -> None:
    """
    The images have no bash; dash or busybox must be able to read a script.
    """
    shell = shutil.which("dash") or "/bin/sh"

    subprocess.run([shell, "-n", script], check=True)


def test_schema_prepares_both_databases(tmp_path: Path) -> None:
    """
    Each database is created, given a version table, then brought up to date; the password is in no
    command line, where any process could read it.
    """
    tool = tmp_path / "temporal-sql-tool"
    # Stands for the program of the image: PyPI has none.
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)

    run("schema", RUN_HERE["schema"], {"SQL_PASSWORD": "hunter2"}, tmp_path)

    migrations = "/etc/temporal/schema/postgresql/v12"
    assert (tmp_path / "calls").read_text().splitlines() == [
        "--database temporal create-database",
        "--database temporal setup-schema -v 0.0",
        f"--database temporal update-schema -d {migrations}/temporal/versioned",
        "--database temporal_visibility create-database",
        "--database temporal_visibility setup-schema -v 0.0",
        f"--database temporal_visibility update-schema -d {migrations}/visibility/versioned",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A Temporal server as the file would start it: same version, same settings."""

    env: WorkflowEnvironment
    address: str
    ui_port: int


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Server]:
    settings = yaml.safe_load((ROOT / "deploy" / "temporal.yaml").read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        ui_port: int = probe.getsockname()[1]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(TEMPORAL),
        ui=True,
        ui_port=ui_port,
        dev_server_extra_args=[
            argument
            for key, [setting] in settings.items()
            for argument in ("--dynamic-config-value", f"{key}={json.dumps(setting['value'])}")
        ],
    ) as env:
        address = env.client.service_client.config.target_host
        yield Server(env=env, address=address, ui_port=ui_port)


@pytest.mark.server
def test_namespace_and_search_attributes_are_set_up_once(server: Server) -> None:
    """
    The first run creates them all with their types; the second changes nothing and succeeds.
    """
    where = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": "set-up-here"}

    for _ in range(2):
        run("namespace", RUN_HERE["namespace"], where, TEMPORAL.parent)

    listed = run("namespace", "temporal operator search-attribute list", where, TEMPORAL.parent)
    rows = (line.split() for line in listed.splitlines())
    assert {row[0]: row[1] for row in rows if row and row[0].startswith("Refold")} == ATTRIBUTES


@pytest.mark.server
def test_the_ui_says_that_it_is_well(server: Server) -> None:
    """
    The path that the health check asks for exists.
    """
    url = RUN_HERE["ui health"].split()[-1].replace("8080", str(server.ui_port))

    with urllib.request.urlopen(url) as reply:
        assert reply.status == 200


def worker_health(address: str, queue: str) -> None:
    """Run the worker's health check once, as Docker does."""
    where = {"TEMPORAL_ADDRESS": address, "REFOLD_TASK_QUEUE": queue}
    run("worker", RUN_HERE["worker health"], where, Path(sys.executable).parent)


def worker_health_by_and_by(address: str, queue: str, alive: Callable[[], bool]) -> None:
    """Run it again and again, while the worker lives, for as long as Docker lets it start."""
    start_period = SERVICES["worker"]["healthcheck"]["start_period"]
    deadline = time.monotonic() + float(start_period.removesuffix("s"))
    while alive() and time.monotonic() < deadline:
        with contextlib.suppress(AssertionError):
            return worker_health(address, queue)
    return worker_health(address, queue)


@workflow.defn
class Idle:
    """Lets a worker poll for workflows; never started."""

    @workflow.run
    async def run(self) -> None:
        return None


@pytest.mark.server
async def test_worker_health_asks_whether_this_host_polls(server: Server) -> None:
    """
    Ill without a worker, well with one.
    """
    with pytest.raises(AssertionError, match=r"no worker of .+ polls task queue 'health'"):
        await asyncio.to_thread(worker_health, server.address, "health")

    runner = UnsandboxedWorkflowRunner()
    async with Worker(server.env.client, task_queue="health", workflows=[Idle], workflow_runner=runner) as worker:
        await asyncio.to_thread(worker_health_by_and_by, server.address, "health", lambda: worker.is_running)


@pytest.mark.server
def test_open_tasks_are_shown(server: Server) -> None:
    """
    `refold metrics` shows them where the health check and Prometheus look.
    """
    at = f"127.0.0.1:{free_port()}"
    verb, *words = shlex.split(RUN_HERE["open-tasks"].replace("0.0.0.0:9464", at))
    check = RUN_HERE["open-tasks health"].replace("127.0.0.1:9464", at)
    settings = {"TEMPORAL_ADDRESS": server.address, "REFOLD_STORAGE": "off"}
    command = [str(Path(sys.executable).with_name(verb)), *words]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **settings}, stdout=subprocess.PIPE) as asking:
        try:
            assert asking.stdout is not None
            assert at in asking.stdout.readline().decode()
            run("open-tasks", check, {}, Path(sys.executable).parent)
            asking.terminate()

            assert asking.wait(timeout=60) == 0
        finally:
            asking.kill()


@pytest.mark.server
def test_the_gateway_answers_whoever_has_a_key(server: Server) -> None:
    """
    It is ready where the health check looks, and offers the page. Without keys it does not start.
    """
    verb, *words = shlex.split(RUN_HERE["gateway"])
    port = str(free_port())
    command = [str(Path(sys.executable).with_name(verb)), *words, "--port", port]
    where = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": "gateway"}
    run("namespace", RUN_HERE["namespace"], where, TEMPORAL.parent)
    settings = {**os.environ, **where, "REFOLD_STORAGE": "off"}
    alone = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=90, check=False)
    assert alone.returncode == 2
    assert "REFOLD_A2A_API_KEYS" in alone.stderr

    settings |= {"REFOLD_A2A_API_KEYS": "ada=0123456789abcdef", "REFOLD_A2A_URL": f"http://localhost:{port}"}
    with subprocess.Popen(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout is not None
            gateway.stdout.readline()
            run("gateway", RUN_HERE["gateway health"].replace("9000", port), {}, Path(sys.executable).parent)
            asked = urllib.request.Request(f"http://localhost:{port}/page/", headers={"X-API-Key": "0123456789abcdef"})
            with urllib.request.urlopen(asked) as page:
                assert page.status == 200
            gateway.terminate()

            assert gateway.wait(timeout=60) == 0
        finally:
            gateway.kill()


def test_grafana_finds_the_dashboard() -> None:
    """
    What the provisioning names is where the file mounts it.
    """
    grafana = SERVICES["grafana"]
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/refold.yml").read_text())["providers"][0]
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())

    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_prometheus_scrapes_every_process_of_refold() -> None:
    """
    The gateway is looked up: where nobody starts it, there is no target that seems to be down. So are workers, each a
    target of its own: one name for several would give one's metrics now, and another's then.
    """
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    always = scrape["static_configs"][0]["targets"]
    perhaps = [f"{name}:{one['port']}" for one in scrape["dns_sd_configs"] for name in one["names"]]

    shown = {name for name, one in SERVICES.items() if "REFOLD_METRICS" in one.get("environment", {})}
    assert {*always, *perhaps} == {f"{name}:9464" for name in shown | {"open-tasks"}}
    assert {SERVICES[name]["environment"]["REFOLD_METRICS"] for name in shown} == {"0.0.0.0:9464"}
    assert shown | {"open-tasks"} == {name for name, one in SERVICES.items() if one["image"].startswith("refold-")}
    assert perhaps == ["worker:9464", "gateway:9464"]


def test_the_gateway_says_the_ports_at_which_people_reach_it_and_the_ui() -> None:
    """
    Its card and its page name the ports of this machine, whichever they are.
    """
    outside = {}
    for name in ("gateway", "ui"):
        (port,) = SERVICES[name]["ports"]
        outside[name], _, _ = port.removeprefix("127.0.0.1:").rpartition(":")
    said = SERVICES["gateway"]["environment"]
    workflows = f"http://localhost:{outside['ui']}/namespaces/${{TEMPORAL_NAMESPACE:-default}}/workflows"

    assert said["REFOLD_A2A_URL"] == f"${{REFOLD_A2A_URL:-http://localhost:{outside['gateway']}}}"
    assert said["REFOLD_TEMPORAL_UI"] == f"${{REFOLD_TEMPORAL_UI:-{workflows}}}"


@pytest.mark.server
def test_the_worker_comes_up_and_leaves_when_asked(server: Server) -> None:
    """
    `python worker.py` polls the server that TEMPORAL_ADDRESS names, and ends well on SIGTERM.
    """
    settings = {"TEMPORAL_ADDRESS": server.address, "REFOLD_STORAGE": "off", "REFOLD_MODEL": "scripted:demo"}
    command = [sys.executable, *RUN_HERE["worker"].split()[1:]]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **settings}) as worker:
        try:
            worker_health_by_and_by(server.address, "refold", lambda: worker.poll() is None)
            worker.terminate()

            assert worker.wait(timeout=100) == 0
        finally:
            worker.kill()
