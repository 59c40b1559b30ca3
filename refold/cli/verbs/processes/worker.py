"""`refold worker`: runs the tasks of this folder's skills."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold import temporal
from refold.cli.application import application, without_skill
from refold.cli.errors import CallError
from refold.cli.verb import Call, add
from refold.cli.verbs.code import Modules
from refold.core.authoring.skill import skill_id
from refold.core.authoring.tool import tool_spec
from refold.core.schema import fields_of
from refold.engine import UnknownSkill
from refold.temporal.worker.leaving import signals_to_leave
from refold.temporal.worker.profile import DEFAULT, PROFILES, Profile

if TYPE_CHECKING:
    from refold.static import Parts

Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="provider:name for model calls that name no model. Else REFOLD_MODEL, else scripted:demo."
    ),
]
Recovery = Annotated[
    str,
    typer.Option(
        "--recovery",
        metavar="|".join(PROFILES),
        help="How soon a lost worker is noticed: `fast-recovery` after 1 s instead of 5, with more heartbeats. "
        "Skills may say otherwise for their effects.",
    ),
]
Mcp = Annotated[
    Path | None,
    typer.Option(
        "--mcp", metavar="FILE", help="MCP servers whose tools skills may call, as JSON. Else the file in REFOLD_MCP."
    ),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Write log lines as JSON, on stderr.")]
NoSandbox = Annotated[
    bool,
    typer.Option(
        "--no-sandbox",
        help="Run skills outside Temporal's sandbox: replay takes about an eighth less time, and an impure skill is "
        "found by `refold check` and by replay only.",
    ),
]


Served = Annotated[
    list[str] | None,
    typer.Option("--skill", metavar="ID", help="Serve only this skill of the modules; repeatable.", show_default=False),
]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        min=0,
        max=86_400,
        metavar="SECONDS",
        help="How long running effects may take to finish after SIGTERM; then other workers take them over. Else "
        "REFOLD_GRACE, else 25: Kubernetes kills after 30.",
    ),
]
MOST = 1_000_000
"""The largest `--slots`, `--threads` and so on: more than a machine has room for, less than the SDK's numbers hold."""

Slots = Annotated[
    int | None,
    typer.Option(
        "--slots", min=1, max=MOST, help="The most effects at once: model calls, tools, activities. Else 100."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=MOST, help="The most tools that are a plain `def` at once. Else 32."),
]
Pollers = Annotated[
    int | None,
    typer.Option(
        "--pollers",
        min=2,
        max=MOST,
        help="How many requests for work wait at the server, of tasks and of effects each. Else 5.",
    ),
]
Cache = Annotated[
    int | None,
    typer.Option(
        "--cache",
        min=1,
        max=MOST,
        help="The most tasks kept in memory; others are replayed at their next step. Else 1000.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        min=0.001,
        metavar="PER_SECOND",
        help="The most effects that the server gives to all workers of the task queue in a second. Else no limit.",
    ),
]
Deployment = Annotated[
    str | None,
    typer.Option(
        "--deployment",
        metavar="NAME",
        envvar="TEMPORAL_DEPLOYMENT_NAME",
        help="The worker deployment that the worker belongs to, as the version --build-id: each task stays on the "
        "version that began its run, and its next run goes to the current one.",
    ),
]
BuildId = Annotated[
    str | None,
    typer.Option(
        "--build-id",
        metavar="ID",
        envvar="TEMPORAL_WORKER_BUILD_ID",
        help="A name of the code that the worker runs, such as a commit, for `refold upgrade --to`. Else a hash of all "
        "loaded modules.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Show metrics at this address, for Prometheus; or the URL of an OpenTelemetry collector. Else "
        "REFOLD_METRICS, else none.",
    ),
]
HealthAt = Annotated[
    str | None,
    typer.Option(
        "--health",
        metavar="HOST:PORT",
        help="Answer /livez and /readyz at this address. Else REFOLD_HEALTH, else nowhere.",
    ),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain",
        help="End when the task queue is empty. Tasks that wait for a person, a time or a call stay open, for the next "
        "worker.",
    ),
]
Durability = Annotated[
    str | None,
    typer.Option(
        "--durability",
        metavar="history|ledger",
        help="Where effects' outcomes are kept first. `ledger` is faster, for workers that share one ledger "
        "(REFOLD_LEDGER). Else REFOLD_DURABILITY, else history.",
    ),
]
MostEffects = Annotated[
    int | None,
    typer.Option(
        "--effects", min=1, metavar="N", help="End after so many effects, too: model calls, tools, activities."
    ),
]
WithParent = Annotated[
    bool, typer.Option("--with-parent", hidden=True, help="Stop when stdin closes: the parent is gone.")
]


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, worker)


async def worker(
    call: Call,
    modules: Modules = None,
    skill: Served = None,
    model: Model = None,
    recovery: Recovery = DEFAULT.name,
    no_sandbox: NoSandbox = False,
    mcp: Mcp = None,
    log_json: LogJson = False,
    grace: Grace = None,
    slots: Slots = None,
    threads: Threads = None,
    pollers: Pollers = None,
    cache: Cache = None,
    rate: Rate = None,
    deployment: Deployment = None,
    build_id: BuildId = None,
    metrics: Metrics = None,
    health: HealthAt = None,
    drain: Drain = False,
    effects: MostEffects = None,
    durability: Durability = None,
    with_parent: WithParent = False,
) -> None:
    """Run the skills and tools of this folder.

    Runs until Ctrl-C or SIGTERM, or with --drain until there is nothing to do; then running effects have time to finish
    (--grace). Prints one line once it polls; with --json, an object with its pid, task queue, skills and tools, and the
    input fields of skills that start from data.
    """
    if with_parent:
        end_with_parent()
    skills, found = _chosen(application(modules or []), skill or [])

    def ready(polling: Any) -> None:
        client = polling.client
        say_ready(call, found, address=client.service_client.config.target_host, namespace=client.namespace)

    given: dict[str, Any] = {"deployment": deployment, "build_id": build_id, "durability": durability}
    given |= {
        "threads": threads,
        "max_concurrent_activities": slots,
        "max_concurrent_activity_task_polls": pollers,
        "max_concurrent_workflow_task_polls": pollers,
        "max_cached_workflows": cache,
        "max_task_queue_activities_per_second": rate,
        "drain": _drained(drain, effects),
    }
    at = call.server
    await temporal.run_worker(
        skills=skills,
        tools=found.tools,
        address=at.address,
        namespace=at.namespace,
        config_profile=at.profile,
        task_queue=at.task_queue,
        model=model,
        recovery=profile_named(recovery),
        sandboxed=not no_sandbox,
        mcp=mcp,
        log_json=log_json,
        grace_s=grace,
        metrics=metrics,
        health=health,
        ready=ready,
        **{name: value for name, value in given.items() if value is not None},
    )
    call.out.note("worker stopped")


def _drained(drain: bool, effects: int | None) -> temporal.Drained | None:
    """When the worker ends by itself, if it does."""
    if effects is not None and not drain:
        raise CallError("--effects says when a worker ends that has --drain; give both")
    return temporal.Drained(effects=effects) if drain else None


def _chosen(found: Parts, ids: Sequence[str]) -> tuple[Sequence[Any], Parts]:
    """What is served of an application: all of it, or the skills with these ids."""
    if not found.skills:
        raise without_skill(found)
    if not ids:
        return found.modules, found
    if unknown := set(ids) - found.skills.keys():
        raise UnknownSkill(min(unknown), list(found.skills))
    skills = [cls for cls in temporal.workflows_of(found.modules) if skill_id(cls.skill) in ids]
    return skills, replace(found, skills={id: one for id, one in found.skills.items() if id in ids})


def profile_named(recovery: str) -> Profile:
    """The profile that `--recovery` names."""
    profile = PROFILES.get(recovery)
    if profile is None:
        raise CallError(f"--recovery takes {' or '.join(PROFILES)}, not {recovery!r}")
    return profile


def say_ready(call: Call, found: Parts, *, address: str, namespace: str) -> None:
    """The line that says that the worker polls."""
    skills = sorted(found.skills)
    tools = sorted(spec.name for tool in found.tools if (spec := tool_spec(tool)) is not None)
    typed = {id: skill.options.input for id, skill in found.skills.items() if skill.options.input is not None}
    inputs = {id: fields_of(kind) for id, kind in sorted(typed.items())}
    queue = call.server.task_queue
    if call.out.json:
        line = {"pid": os.getpid(), "address": address, "namespace": namespace, "task_queue": queue}
        call.out.value({**line, "skills": skills, "tools": tools, "inputs": inputs})
        return
    listed = f"skills: {', '.join(skills) or 'none'}; tools: {', '.join(tools) or 'none'}"
    call.out.say(f"worker ready on task queue {queue} at {address}; {listed}")


def stopped_by_signal() -> asyncio.Event:
    """An event that is set where the process is told to leave."""
    stop = asyncio.Event()
    for number in signals_to_leave():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def end_with_parent() -> None:
    """Stop, as on SIGTERM, when the parent process has ended.

    Call it before the application is imported. For its code stdin is at its end: nobody types into the parent's pipe,
    and an `input()` in a tool would wait for ever.
    """
    parent = os.dup(sys.stdin.fileno())
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, sys.stdin.fileno())
    os.close(empty)

    def closed() -> None:
        if not os.read(parent, 1024):
            loop.remove_reader(parent)
            signal.raise_signal(signal.SIGTERM)

    loop = asyncio.get_running_loop()
    loop.add_reader(parent, closed)
