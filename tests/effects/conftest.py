"""What the tests of effects share: an activity environment, effects that are open, an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from refold.core.commands import CallLlm, CallTool
from refold.core.fold.snapshot import Given
from refold.core.retry_policy import Failure
from refold.effects.activities import Effects
from tests.services.openai_server import OpenAIServer

TASK = "task-1"
INVOCATION = "task-1/3.1"


def name_of(activity: Callable[..., Any]) -> str | None:
    """An activity's name; None for the dynamic one."""
    name: str | None = activity.__temporal_activity_definition.name  # type: ignore[attr-defined]
    return name


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a ledger of its own: all of them use one key."""
    file = tmp_path / "ledger.db"
    monkeypatch.setenv("REFOLD_LEDGER", str(file))
    return file


class Bench:
    """Runs activities as a worker would, one attempt at a time, and keeps their heartbeats."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.heartbeats: list[Any] = []
        self.environment = self._environment(1)

    def _environment(self, attempt: int, task_id: str = TASK) -> ActivityEnvironment:
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info, activity_id=INVOCATION, workflow_id=task_id, namespace="ns", attempt=attempt
        )
        environment.on_heartbeat = lambda *details: self.heartbeats.append(details)
        return environment

    @property
    def waits_for_a_thread(self) -> bool:
        """Whether a call waits for a thread."""
        return bool(self.effects.open.threads.waiting)

    def activity(self, name: str) -> Callable[..., Any]:
        """The activity of this name."""
        return next(one for one in self.effects.activities if name_of(one) == name)

    async def run(self, name: str, *args: Any, attempt: int = 1, task_id: str = TASK) -> Any:
        """What the activity answers."""
        self.environment = self._environment(attempt, task_id)
        return await self.environment.run(self.activity(name), *args)

    async def llm(self, command: CallLlm, *args: Any) -> Any:
        """What the model answers."""
        return await self.run("refold.llm", command, *args)

    async def tool(
        self,
        command: CallTool,
        *,
        attempt: int = 1,
        decided: int | bool = 0,
        given: Given | None = None,
        owner: str | None = None,
        task_id: str = TASK,
    ) -> Any:
        """What the tool answers."""
        more = [] if given is None and owner is None else [given, owner]
        return await self.run(f"tool.{command.name}", command, decided, *more, attempt=attempt, task_id=task_id)


def failure_in(error: ApplicationError, *, left: bool = False) -> Failure:
    """The classified failure that an activity left with; `left` to other workers if Temporal dispatches it again."""
    (failure,) = error.details
    assert isinstance(failure, Failure)
    assert error.non_retryable is not left
    assert error.type == failure.type
    assert error.__cause__ is None, "a cause may quote a body"
    return failure


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Effects without tools, open."""
    async with Effects() as effects:
        yield Bench(effects)


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """A server that `openai:` models reach by the environment."""
    with OpenAIServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
