"""A gateway in this process, over an engine in memory; and one on a port, over the session's server and a worker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from refold.a2a import Settings, a2a_app
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from refold.testing import FakeEngine
from tests.a2a import skills

# The server's client and where it keeps large values are the Temporal tests'.
from tests.services.serving import PromptServer
from tests.temporal.conftest import PATIENT, client, pytest_collection_modifyitems, values

__all__ = ["client", "pytest_collection_modifyitems", "values"]

BASE = "http://gateway.test"
VERSION = {"A2A-Version": "1.0"}


@dataclass
class Calls:
    """Calls a gateway, over JSON-RPC and over REST.

    Attributes:
        http: The client that the calls go through.
        base: Where the gateway is.
    """

    http: httpx.AsyncClient
    base: str = BASE
    headers: dict[str, str] = field(default_factory=lambda: dict(VERSION))

    async def rpc(self, method: str, params: Any = None, **headers: str) -> dict[str, Any]:
        """The whole JSON-RPC answer."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        answer = await self.http.post(f"{self.base}/", json=body, headers={**self.headers, **headers})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def result(self, method: str, params: Any = None, **headers: str) -> Any:
        """The result of a JSON-RPC call that works."""
        answer = await self.rpc(method, params, **headers)
        assert "error" not in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any = None, **headers: str) -> dict[str, Any]:
        """The error of a JSON-RPC call that does not."""
        answer = await self.rpc(method, params, **headers)
        assert "result" not in answer, answer
        found: dict[str, Any] = answer["error"]
        return found

    async def rest(self, verb: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """A REST call."""
        return await self.http.request(verb, f"{self.base}{path}", json=body, headers={**self.headers, **headers})

    async def send(self, text: str = "Hello", **message: Any) -> Any:
        """Send a text; the task or message that comes of it."""
        configuration = message.pop("configuration", {})
        metadata = message.pop("metadata", {})
        params = {"message": said(text, **message), "configuration": configuration, "metadata": metadata}
        result = await self.result("SendMessage", params)
        return next(iter(result.values()))


def said(text: str = "Hello", **message: Any) -> dict[str, Any]:
    """A user's message of one text, as JSON."""
    return {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}], **message}


@pytest.fixture
def fake() -> FakeEngine:
    """An engine in memory that serves all skills of these tests."""
    return FakeEngine([*skills.ALL, skills.Usher], answers=skills.ANSWERS)


@contextlib.asynccontextmanager
async def calling(app: Starlette) -> AsyncIterator[Calls]:
    """Calls to an application in this process."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        yield Calls(http)


@pytest.fixture
async def gateway(fake: FakeEngine) -> AsyncIterator[Calls]:
    """A gateway to all skills, in this process."""
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE))) as calls:
        yield calls


@contextlib.asynccontextmanager
async def serving(app: Starlette, sock: socket.socket) -> AsyncIterator[str]:
    """An application on a socket of its own; where it is."""
    running = PromptServer(uvicorn.Config(app, log_level="warning", lifespan="off"))
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"
    task = asyncio.create_task(running.serve(sockets=[sock]))
    try:
        yield address
    finally:
        running.end()
        await task


def free_socket() -> socket.socket:
    """A socket that is bound and listens: whoever connects early waits."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


@pytest.fixture(scope="session")
async def a2a_engine(server: Any, client: Any, values: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine over the session's server, with a worker for the skills of these tests."""
    plugin = RefoldPlugin([skills], skills.TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue="a2a"):
        yield TemporalEngine(client, "a2a", patience=PATIENT)


@pytest.fixture(scope="session")
async def served(a2a_engine: TemporalEngine) -> AsyncIterator[str]:
    """The address of a gateway on a port, over Temporal."""
    sock = free_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with serving(a2a_app(a2a_engine, skills.ALL, Settings(url=url)), sock) as address:
        yield address


Serve = Callable[[Starlette], contextlib.AbstractAsyncContextManager[str]]
