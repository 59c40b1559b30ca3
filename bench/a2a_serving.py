"""An A2A server in a process of its own, which reports its CPU time and memory.

`python -m bench.a2a_serving refold ADDRESS QUEUE` is refold's gateway; `… sdk` the SDK's own server, with its tasks in
memory and an agent that does the same as `bench.a2a_skills`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette

from bench.a2a_skills import SKILLS
from bench.logs import quiet_logs
from bench.processes import answering
from refold.a2a import a2a_app
from refold.a2a.serve import bound, url_of
from refold.a2a.serve import serve as gateway
from refold.temporal import connect


class Agent(AgentExecutor):
    """Echoes, or waits."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Handle a request."""
        assert context.message is not None
        task_id, context_id = str(context.task_id), str(context.context_id)
        submitted = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        task = Task(id=task_id, context_id=context_id, status=submitted, history=[context.message])
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task_id, context_id)
        parts = [Part(text=part.text) for part in context.message.parts]
        if context.metadata.get("skill") == "waits":
            await updater.requires_input(updater.new_agent_message([Part(text="Say something.")]))
            return
        await updater.add_artifact(parts, artifact_id="echo", name="echo")
        await updater.complete(updater.new_agent_message(parts))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel is not used here."""
        raise NotImplementedError


def sdk_app() -> Starlette:
    """The SDK's own server."""
    card = AgentCard(
        name="agent",
        description="Echoes, or waits.",
        version="1",
        supported_interfaces=[
            AgentInterface(url="http://127.0.0.1/", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="echo", description="Says back what it hears.", tags=["test"])],
    )
    handler = DefaultRequestHandler(agent_executor=Agent(), task_store=InMemoryTaskStore(), agent_card=card)
    return Starlette(
        routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/"), *create_rest_routes(handler)]
    )


async def serve(side: str, *where: str) -> None:
    """Serve until stdin ends."""
    sock, stop = bound("127.0.0.1", 0), asyncio.Event()
    if side == "refold":
        address, queue = where
        app = a2a_app(await connect(address=address, task_queue=queue), SKILLS)
        serving = asyncio.create_task(gateway(app, sock, stop, drain_s=2))
    else:
        config = uvicorn.Config(sdk_app(), log_level="error", access_log=False, lifespan="off")
        serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[sock]))
    await answering(url_of(sock, "127.0.0.1"))
    stop.set()
    if side == "refold":
        await serving


if __name__ == "__main__":
    quiet_logs()
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    asyncio.run(serve(*sys.argv[1:]))
    os._exit(0)  # exit without Python's own shutdown, as the benchmarks' worker does
