"""Burr: an application with one action in a loop, its state in SQLite after each."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from burr.core import ApplicationBuilder, State, action, expr
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

from bench.peers.work import effect, folder


@action(reads=["task", "results"], writes=["results"])
async def step(state: State) -> State:
    """The next step."""
    return state.append(results=effect(state["task"], len(state["results"]) + 1))


@action(reads=["results"], writes=["done"])
async def end(state: State) -> State:
    """Where the loop ends."""
    return state.update(done=len(state["results"]))


@dataclass(frozen=True, slots=True)
class Side:
    """Burr with its persister."""

    persister: Any

    async def perform(self, task: str, steps: int) -> None:
        """Run it, from where it was."""
        built = (
            ApplicationBuilder()
            .with_actions(step, end)
            .with_transitions(("step", "step", expr(f"len(results) < {steps}")), ("step", "end"))
            .with_identifiers(app_id=task)
            .initialize_from(
                self.persister,
                resume_at_next_action=True,
                default_state={"task": task, "results": []},
                default_entrypoint="step",
            )
            .with_state_persister(self.persister)
        )
        application = await built.abuild()
        _, _, state = await application.arun(halt_after=["end"])
        assert state["done"] == steps

    async def kept(self, task: str) -> int:
        """The rows of its states."""
        rows = await self.persister.connection.execute(
            "SELECT sum(length(state) + length(position) + length(app_id)) FROM burr_state WHERE app_id = ?", (task,)
        )
        return int((await rows.fetchone())[0])


@contextlib.asynccontextmanager
async def serving(variant: str) -> AsyncIterator[Side]:
    """The persister."""
    # WAL costs one fsync a commit; SQLite's default journal, which Burr leaves, costs several.
    async with AsyncSQLitePersister.from_values(str(folder() / "burr.db")) as persister:
        await persister.connection.execute("PRAGMA journal_mode=WAL")
        await persister.initialize()
        yield Side(persister)
