"""A command line over an engine in memory."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from refold import Content
from refold.cli.app import app
from refold.cli.verb import ServerOptions
from refold.engine import Engine, TaskView
from refold.testing import FakeEngine
from workflows.hello import Hello
from workflows.research_loop import ResearchLoop

DRAFTS = {"research": "A draft.", "greeting": "Hello, Ada."}


class Critic:
    """Needs a person first, then approves."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _: Any) -> Any:
        self.asked += 1
        decision = "NeedsHumanInput" if self.asked == 1 else "Approved"
        return {"decision": decision, "text": "Which coast?"}


@dataclass
class Result:
    """What a command left behind."""

    exit: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on stdout."""
        (line,) = self.lines
        return line

    @property
    def lines(self) -> list[Any]:
        """The JSON values on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The JSON object on stderr; nothing stands on stdout."""
        assert self.out == ""
        return json.loads(self.err)


@dataclass
class Shell:
    """Runs `refold …` against an engine; remembers which server was meant."""

    engine: FakeEngine
    server: ServerOptions | None = None

    def __call__(self, *words: str, stdin: str | None = None) -> Result:
        async def connect(server: ServerOptions) -> Engine:
            self.server = server
            return self.engine

        done = CliRunner().invoke(app, list(words), input=stdin, obj=connect)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Result(done.exit_code, done.stdout, done.stderr)

    def start(self, skill: str, text: str, task_id: str) -> TaskView:
        """Start a task behind the command line's back."""
        return asyncio.run(self.engine.start(skill, Content.from_text(text), task_id=task_id))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine([Hello, ResearchLoop], answers={**DRAFTS, "critique": Critic()})


@pytest.fixture
def refold(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in ("REFOLD_DEBUG", "REFOLD_TASK_QUEUE", "TEMPORAL_ADDRESS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Shell(engine)
