"""How `refold serve`, `codec`, `metrics` and `dev` are told to leave."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from refold.cli.verbs.processes.worker import stopped_by_signal

LEAVE = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers_as_they_were() -> Iterator[None]:
    """The loop's handlers are gone with the test."""
    before = {number: signal.getsignal(number) for number in LEAVE}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", LEAVE, ids=lambda one: one.name)
async def test_a_signal_asks_a_process_to_leave(number: signal.Signals) -> None:
    """
    Ctrl-C, SIGTERM, and a terminal that is closed: the process ends what it does first.
    """
    stop = stopped_by_signal()

    signal.raise_signal(number)
    await stop.wait()


async def test_a_process_outlives_its_terminal_where_it_is_to() -> None:
    """
    `nohup` starts it with SIGHUP ignored, and it stays so.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = stopped_by_signal()

    signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert not stop.is_set()
