"""Which failed calls a watch retries."""

from __future__ import annotations

import pytest

from refold.engine import NotConnected, NoWorker
from refold.temporal.client.watch import reconnect
from refold.temporal.client.watch.reconnect import AGAIN_S, Reconnect


async def test_the_time_without_a_worker_is_no_outage_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A watch that has long waited for a worker retries as after any other answer once the server is away; and no longer.
    """
    monkeypatch.setattr(reconnect, "OUTAGE_S", AGAIN_S / 2)
    watch, away = Reconnect(), NotConnected("no server answers")
    watch.answered()

    await watch.failed(NoWorker("no worker answers"))
    await watch.failed(away)
    await watch.failed(NoWorker("no worker answers"))
    await watch.failed(away)
    with pytest.raises(NotConnected):
        await watch.failed(away)
