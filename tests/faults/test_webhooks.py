"""Webhooks through gateways that die."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from refold.temporal.dev import DevServer
from tests.a2a.conftest import Calls, said
from tests.faults.processes import WorkerProcess, Workers
from tests.services.receiver import Receiver

STEPS = 6


async def test_a_delivery_survives_its_gateway(workers: Workers, server: DevServer, queue: str, tmp_path: Path) -> None:
    """
    The gateway is killed while the receiver has an update in its hands: another one posts it again, and all that
    follows, in order, to the end.
    """

    async def gateway() -> WorkerProcess:
        command = ["refold.cli", "serve", "tests.faults.skills", "--json", "--with-parent", "--port", "0"]
        command += ["--address", server.address, "--task-queue", queue]
        return await workers.launch([*command, "--recovery", "fast-recovery", "--allow-loopback"])

    _, one = await asyncio.gather(workers.start(queue), gateway())
    with Receiver() as receiver:
        async with httpx.AsyncClient(timeout=60) as http:
            params = {
                "message": {**said(), "parts": [{"data": {"gate": str(tmp_path), "count": STEPS}}]},
                "metadata": {"skill": "stairs"},
                "configuration": {"returnImmediately": True, "taskPushNotificationConfig": {"url": receiver.url}},
            }
            await Calls(http, one.about["url"]).result("SendMessage", params)
            (tmp_path / "1").touch()
            await receiver.until(lambda receiver: places(receiver)[-1:] == ["2.1"])
            receiver.slow = True
            (tmp_path / "2").touch()
            await receiver.until(lambda receiver: places(receiver)[-1:] == ["3.1"])
            await one.kill()
            killed = len(receiver.posts)
            receiver.slow = False
            for number in range(3, STEPS + 1):
                (tmp_path / str(number)).touch()
            await gateway()
            await receiver.until(lambda receiver: places(receiver)[-1:] == [f"{STEPS + 1}.1"])

    seen = places(receiver)
    assert list(dict.fromkeys(seen)) == ["0.0", *(f"{seq}.1" for seq in range(1, STEPS + 2))]
    before, after = seen[:killed], seen[killed:]
    assert (before, after) == (sorted(before), sorted(after))
    # What the last heartbeat did not tell of comes again; what was on its way in any case.
    assert after[0] <= "3.1"
    assert "3.1" in after
    assert receiver.posts[-1].json["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def places(receiver: Receiver) -> list[str]:
    """Which updates came, in the order in which they came."""
    return [post.headers["webhook-id"].rpartition("/")[2] for post in receiver.posts]
