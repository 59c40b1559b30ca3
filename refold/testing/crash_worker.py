"""A worker that kills itself at a given point: `python -m refold.testing.crash_worker MODULE… --address …`.

`REFOLD_CRASH_AT` names the point: `before`, `performed` or `after`, and the effect's invocation id; see
`refold.testing.crash_sweep`. Otherwise it is an ordinary worker. It is for tests alone.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import inspect
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from refold.core.authoring.tool import ToolSpec, tool_spec
from refold.temporal import run_worker
from refold.temporal.worker.profile import FAST_RECOVERY
from refold.temporal.worker.registry import workflows_of
from refold.testing.crash_sweep import CRASH_AT


def crash_worker(*modules: str, address: str, task_queue: str) -> list[str]:
    """The command that starts such a worker.

    Args:
        modules: Of skills and tools, or packages of them, as they are imported.
        address: The server.
        task_queue: The task queue that it polls.
    """
    command = [sys.executable, "-m", "refold.testing.crash_worker", *modules]
    return [*command, "--address", address, "--task-queue", task_queue]


def _dies_at(kind: str) -> bool:
    at, _, invocation_id = os.environ.get(CRASH_AT, "").partition(" ")
    return at == kind and activity.in_activity() and activity.info().activity_id == invocation_id


def _die_at(kind: str) -> None:
    if _dies_at(kind):
        os.kill(os.getpid(), signal.SIGKILL)


class _Crash(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _CrashingActivity(super().intercept_activity(next))


class _CrashingActivity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        _die_at("before")
        try:
            return await super().execute_activity(input)
        finally:
            _die_at("after")


def _crashing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, killed after it has taken effect and before a receipt is written."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def performed(*args: Any, **kwargs: Any) -> Any:
            result = await function(*args, **kwargs)
            _die_at("performed")
            return result

        return performed

    @functools.wraps(function)
    def performed_in_thread(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        _die_at("performed")
        return result

    return performed_in_thread


def _modules(names: Sequence[str]) -> Iterator[ModuleType]:
    for name in names:
        module = importlib.import_module(name)
        yield module
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            yield importlib.import_module(found.name)


def _tools(modules: Sequence[ModuleType]) -> list[Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for module in modules:
        for value in vars(module).values():
            for one in (value, *_held(value)):
                spec = tool_spec(one)
                if spec is not None and spec.name not in found:
                    _let_it_crash(spec)
                    found[spec.name] = one
    return list(found.values())


def _held(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _let_it_crash(spec: ToolSpec) -> None:
    # Specs are frozen, and shared by all modules that imported the tool; that does not matter in a process that will be
    # killed.
    object.__setattr__(spec, "function", _crashing(spec.function))


async def _main(names: Sequence[str], address: str, task_queue: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    modules = list(_modules(names))
    skills = [module for module in modules if workflows_of([module])]
    options: dict[str, Any] = {"interceptors": [_Crash()]}
    await run_worker(
        skills,
        _tools(modules),
        address=address,
        task_queue=task_queue,
        recovery=FAST_RECOVERY,
        ready=lambda _: print("ready", flush=True),  # noqa: T201 - the sweep reads it
        **options,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--address", required=True)
    parser.add_argument("--task-queue", required=True)
    given = parser.parse_args()
    asyncio.run(_main(given.modules, given.address, given.task_queue))
