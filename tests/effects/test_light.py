"""What a tool's module loads, and what a worker does; and what happens where the rest is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"httpx", "httpx2", "openai", "pydantic_ai", "sqlalchemy", "structlog", "temporalio"}
PROVIDERS = {"anthropic", "openai", "pydantic_ai"}

TWO_CALLS = """
import asyncio, sys

from temporalio.testing import ActivityEnvironment

from refold.core.commands import CallLlm
from refold.effects.activities import Effects

BLOCKED = sys.argv[1:]

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in BLOCKED:
            raise ImportError(f"no {name} here", name=name)

sys.meta_path.insert(0, Missing())

COMMAND = CallLlm(id="a", prompt="hi", model="scripted:demo")

async def call(effects):
    try:
        outcome = await ActivityEnvironment().run(effects.activities[0], COMMAND)
    except Exception as error:
        return f"{error.details[0].kind.value} {error.type}: {error.message}"
    return outcome.value

async def main():
    assert "pydantic_ai" not in sys.modules
    async with Effects() as effects:
        print(*await asyncio.gather(call(effects), call(effects)), sep="\\n")

asyncio.run(main())
"""


def run(script: str, *args: str) -> str:
    """What a script of a new process prints."""
    command = [sys.executable, "-W", "error", "-c", script, *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        # Skills import their tools' modules, in the sandbox too.
        ("refold.effects", HEAVY),
        # A worker that was killed is back before the libraries that models need are loaded.
        ("refold.temporal.worker.run", PROVIDERS | {"sqlalchemy"}),
        # One provider's library takes as long to load as all others: it is loaded where a model needs it.
        ("refold.effects.models.chat", {"anthropic", "openai"}),
        ("refold.temporal.worker.task.workflow", PROVIDERS | {"httpx", "httpx2"}),
        # `refold --help` and wrong calls need no server.
        ("refold.cli.app", HEAVY),
    ],
)
def test_a_module_stays_light(module: str, unwanted: set[str]) -> None:
    """
    Importing a module loads none of what it needs later or never.
    """
    loaded = run(f"import sys, {module}; print(*sys.modules, sep='\\n')").split()

    assert unwanted & set(loaded) == set()


@pytest.mark.slow
def test_the_first_model_calls_wait_for_what_they_need() -> None:
    """
    Two calls that come while the model libraries still load are both answered.
    """
    assert run(TWO_CALLS).splitlines()[-2:] == ["You said: hi", "You said: hi"]


def test_effects_that_are_left_at_once_end() -> None:
    """
    A worker that stops before it was asked for a model call ends cleanly, and has loaded no libraries for one.
    """
    script = """
import asyncio, sys
from refold.effects.activities import Effects

async def main():
    async with Effects():
        await asyncio.sleep(0.1)
    print("left", "pydantic_ai" in sys.modules)

asyncio.run(main())
"""

    assert run(script) == "left False\n"


def test_a_worker_that_has_work_loads_nothing_beside_it() -> None:
    """
    The libraries of models are loaded once no tool has been called for two seconds, by a clock that the test sets.
    """
    script = """
import asyncio, sys
from refold.effects.http.client import open_client
from refold.effects.models.model_calls import IDLE_S, ModelCalls

async def main():
    loop, now = asyncio.get_running_loop(), 0.0
    loop.time = lambda: now
    async with open_client() as http:
        models = ModelCalls(None, http)

        async def after(seconds):
            nonlocal now
            now += seconds
            for _ in range(3):
                await asyncio.sleep(0)
            return models._loading is not None

        found = []
        for _ in range(5):
            found.append(await after(IDLE_S * 0.9))
            models.put_off()
        found += [await after(IDLE_S * 0.9), await after(IDLE_S * 0.2)]
        await models.unusable(["scripted:demo"])
        await models.close()
        print(found, "pydantic_ai" in sys.modules)

asyncio.run(main())
"""

    assert run(script) == f"{[False] * 6 + [True]} True\n"


def test_a_missing_library_fails_calls_for_good() -> None:
    """
    Without pydantic-ai a call fails once and for all, and says what is missing and what to do.
    """
    first, second = run(TWO_CALLS, "pydantic_ai").splitlines()[-2:]

    assert first == second
    assert first.startswith("permanent configuration: model calls cannot be made: ")
    assert "no pydantic_ai here" in first
    assert first.endswith("restart the worker")
