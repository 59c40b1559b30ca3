"""`/readyz` is honest within ten seconds, whatever a worker or a gateway needs and however that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from refold.temporal.dev import dev_server
from tests.faults.processes import Workers, until
from tests.services.postgres import Postgres, postgres
from tests.services.serving import free_port

SOON_S = 10.0
"""Within this time an outage shows, and its end."""


@pytest.fixture
def database() -> Iterator[Postgres]:
    """A ledger's database."""
    with postgres() as running:
        yield running


def family(pid: int) -> list[int]:
    """A process, and those that it has started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [pid, *(one for one, parent in pairs if parent == pid)]


def stopped(pid: int) -> Callable[[], None]:
    """Stop processes as a debugger or a full machine does: connections stay, answers stay away. Returns their end."""
    told = family(pid)
    for one in told:
        os.kill(one, signal.SIGSTOP)

    def goes_on() -> None:
        for one in reversed(told):
            os.kill(one, signal.SIGCONT)

    return goes_on


@pytest.mark.sweep
async def test_what_is_away_is_named_and_comes_back(database: Postgres, values: Path, tmp_path: Path) -> None:
    """
    PostgreSQL hangs, then crashes; the Temporal server is killed. Each time those that need it are not ready within ten
    seconds, name it, stay alive, and are ready again by themselves. The gateway needs no ledger.
    """
    port, db, health = free_port(), tmp_path / "state.db", free_port()
    env = {"REFOLD_LEDGER": database.url}
    async with Workers(f"127.0.0.1:{port}", values, env=env) as workers, httpx.AsyncClient(timeout=15) as http:
        places = [f"http://127.0.0.1:{health}"]

        async def ready() -> list[int]:
            return [(await http.get(f"{place}/readyz")).status_code for place in places]

        async def shows(*statuses: int) -> str:
            await until(ready, lambda found: found == [*statuses], within_s=SOON_S)
            alive = [(await http.get(f"{place}/livez")).status_code for place in places]
            assert alive == [200, 200]
            return (await http.get(f"{places[0]}/readyz")).text

        with ExitStack() as frozen:
            async with dev_server(port=port, db=db) as server:
                await workers.start("health", env={"REFOLD_HEALTH": f"127.0.0.1:{health}"})
                at = ["--address", f"127.0.0.1:{port}", "--task-queue", "health", "--json", "--with-parent"]
                gateway = await workers.launch(["-m", "refold.cli", "serve", "workflows", "--port", "0", *at])
                places.append(gateway.about["url"])
                await shows(200, 200)
                frozen.callback(stopped(int((database.data / "postmaster.pid").read_text().split()[0])))
                assert "ledger: no answer for 3 s" in await shows(503, 200)
                frozen.close()
                await shows(200, 200)
                database.stop()
                assert (await shows(503, 200)).startswith("ledger: ")
                database.start()
                await shows(200, 200)
                os.kill(server.pid, signal.SIGKILL)
                assert "server: " in await shows(503, 503)
            async with dev_server(port=port, db=db):
                await shows(200, 200)
