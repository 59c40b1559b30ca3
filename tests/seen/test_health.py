"""A process says honestly, and soon, whether it can work."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from refold.engine import NotConnected
from refold.seen import health
from refold.seen.health import Health, health_server


class Dependency:
    """Something that may be away, or hang."""

    def __init__(self) -> None:
        self.why: Exception | None = None
        self.hangs = False
        self.asked = 0
        self.back = asyncio.Event()

    async def check(self) -> None:
        self.asked += 1
        if self.hangs:
            await self.back.wait()
        if self.why is not None:
            raise self.why


async def test_what_is_missing_is_named() -> None:
    """
    Alive whatever is missing; ready only if nothing is, and the answer says what and why.
    """
    server, storage = Dependency(), Dependency()
    now = 0.0
    asked = Health({"server": server.check, "storage": storage.check}, clock=lambda: now)

    assert await asked.answer("/readyz") == (200, "ok\n")
    server.why = NotConnected("no server answers at temporal:7233")
    now += health.KEPT_S
    assert await asked.answer("/readyz") == (503, "server: no server answers at temporal:7233\n")
    assert await asked.answer("/livez") == (200, "ok\n")
    assert (await asked.answer("/metrics"))[0] == 404
    server.why = None
    now += health.KEPT_S
    assert await asked.answer("/readyz") == (200, "ok\n")


async def test_many_probes_ask_once() -> None:
    """
    However many ask within a second, the server is asked once.
    """
    server = Dependency()
    asked = Health({"server": server.check}, clock=lambda: 0.0)

    await asyncio.gather(*(asked.answer("/readyz") for _ in range(20)))
    await asked.answer("/readyz")

    assert server.asked == 1


async def test_what_hangs_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A check without an answer fails, and is begun again only after it has ended: nothing piles up.
    """
    ledger, now = Dependency(), 0.0
    ledger.hangs = True
    asked = Health({"ledger": ledger.check}, clock=lambda: now)
    monkeypatch.setattr(health, "PATIENCE_S", 0.01)
    found = []
    for _ in range(3):
        found.append(await asked.answer("/readyz"))
        now += health.KEPT_S

    assert {status for status, _ in found} == {503}
    assert ledger.asked == 1
    ledger.back.set()


async def test_over_http() -> None:
    """
    Probes get their answers by GET or HEAD; anything else, and what is no request, does no harm.
    """
    async with (
        health_server(Health({}), "127.0.0.1", 0) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as http,
    ):
        ready, head = await http.get("/readyz?verbose"), await http.head("/livez")
        lost, posted = await http.get("/"), await http.post("/readyz", content=b"{}")
        for sent in (b"\r\n\r\n", b"x" * 10_000, b"GET /readyz HTTP/1.1\r\n"):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(sent)
            await writer.drain()
            writer.close()
        again = await http.get("/livez")

    assert (ready.status_code, ready.text) == (200, "ok\n")
    assert (head.status_code, head.text) == (200, "")
    assert (lost.status_code, posted.status_code) == (404, 405)
    assert again.status_code == 200
