"""LangGraph: a graph with one node in a loop, checkpoints in SQLite, `durability="sync"`.

The variant `plain` adds to its list with `operator.add`, as the documentation does; `delta` with a `DeltaChannel`,
which is in beta, and whose checkpoints hold what is new.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.peers.work import effect, folder


class Plain(TypedDict):
    """What a task keeps."""

    task: str
    steps: int
    results: Annotated[list[str], operator.add]


def _all(kept: list[str], new: list[list[str]]) -> list[str]:
    return [*kept, *(one for each in new for one in each)]


class Delta(TypedDict):
    """The same, stored by what is new."""

    task: str
    steps: int
    results: Annotated[list[str], DeltaChannel(_all)]


async def step(state: dict[str, Any]) -> dict[str, Any]:
    """The next step."""
    return {"results": [effect(state["task"], len(state["results"]) + 1)]}


def _next(state: dict[str, Any]) -> str:
    return "step" if len(state["results"]) < state["steps"] else END


@dataclass(frozen=True, slots=True)
class Side:
    """A compiled graph with its saver."""

    saver: Any
    graph: Any

    async def perform(self, task: str, steps: int) -> None:
        """Run it, from its newest checkpoint if there is one."""
        config = {"configurable": {"thread_id": task}, "recursion_limit": steps + 10}
        begun = await self.saver.aget_tuple(config) is not None
        start = None if begun else {"task": task, "steps": steps, "results": []}
        state = await self.graph.ainvoke(start, config, durability="sync")
        assert len(state["results"]) == steps

    async def kept(self, task: str) -> int:
        """The rows of its checkpoints and writes."""
        total = 0
        for table, columns in (("checkpoints", ("checkpoint", "metadata")), ("writes", ("value",))):
            lengths = " + ".join(f"coalesce(length({column}), 0)" for column in columns)
            rows = await self.saver.conn.execute(
                f"SELECT coalesce(sum({lengths}), 0) FROM {table} WHERE thread_id = ?", (task,)
            )
            total += int((await rows.fetchone())[0])
        return total


@contextlib.asynccontextmanager
async def serving(variant: str) -> AsyncIterator[Side]:
    """The saver, which sets WAL itself, and the graph."""
    async with AsyncSqliteSaver.from_conn_string(str(folder() / "langgraph.db")) as saver:
        await saver.setup()
        schema = Delta if variant == "delta" else Plain
        built = StateGraph(schema)
        built.add_node("step", step, input_schema=schema)
        built.add_edge(START, "step")
        built.add_conditional_edges("step", _next, ["step", END])
        yield Side(saver, built.compile(checkpointer=saver))
