"""Restate: a service whose steps are `ctx.run_typed`, served over HTTP/2 by hypercorn, as Restate's guide does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.peers.work import effect, server

service = restate.Service("paces")


@service.handler()
async def run(ctx: restate.Context, plan: dict[str, Any]) -> int:
    """All steps of a task."""

    async def step(number: int) -> str:
        return effect(plan["task"], number)

    results = [await ctx.run_typed(f"step {number}", step, number=number) for number in range(1, plan["steps"] + 1)]
    return len(results)


@dataclass(frozen=True, slots=True)
class Side:
    """Restate, with the client of its server."""

    client: Any

    async def perform(self, task: str, steps: int) -> None:
        """Call it; a second call with the same key waits for the first one."""
        assert await self.client.service_call(run, arg={"task": task, "steps": steps}, idempotency_key=task) == steps

    async def kept(self, task: str) -> int:
        """The entries of its journal, as the server stores them."""
        query = (
            "SELECT sum(j.raw_length) AS bytes FROM sys_journal j JOIN sys_invocation i ON i.id = j.id "
            f"WHERE i.idempotency_key = '{task}'"
        )
        async with httpx.AsyncClient(timeout=30) as http:
            answered = await http.post(
                f"{server('admin')}/query", json={"query": query}, headers={"accept": "application/json"}
            )
        answered.raise_for_status()
        return int(answered.json()["rows"][0]["bytes"])


@contextlib.asynccontextmanager
async def serving(variant: str) -> AsyncIterator[Side]:
    """The service, registered at the server."""
    config = Config()
    config.bind = [server("service").removeprefix("http://")]
    config.loglevel = "ERROR"
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(restate.app([service]), config, shutdown_trigger=stop.wait))
    async with httpx.AsyncClient(timeout=30) as http, restate.create_client(server("ingress")) as client:
        answered = await http.post(f"{server('admin')}/deployments", json={"uri": server("service")})
        while not answered.is_success:
            await asyncio.sleep(0.02)  # until the service listens
            answered = await http.post(f"{server('admin')}/deployments", json={"uri": server("service")})
        client.client.timeout = httpx.Timeout(None)
        yield Side(client)
    stop.set()
    await serving
