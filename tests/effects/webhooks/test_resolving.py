"""Which name is resolved first, where many wait for name servers that do not answer."""

from __future__ import annotations

import asyncio

import pytest

from refold.effects.webhooks import resolving
from refold.effects.webhooks.resolving import Names, NoTurn
from tests.effects.webhooks.slow_names import SlowNames


async def waiting(names: Names, server: SlowNames, *hosts: str, begun: int) -> list[asyncio.Task[object]]:
    """Lookups of these hosts, so many of which have begun."""
    tasks: list[asyncio.Task[object]] = []
    for host in hosts:
        tasks.append(asyncio.create_task(names.resolved(host, 80)))
        await asyncio.sleep(0)  # they wait in this order
        if len(tasks) <= begun:
            await asyncio.to_thread(server.until, len(tasks))
    return tasks


async def test_a_domain_has_a_share_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The names of another one are resolved at once, however many of the first wait.
    """
    server, names = SlowNames(monkeypatch), Names(3, per_domain=2)
    slow = await waiting(names, server, *(f"slow-{n}.one.example.org" for n in range(5)), begun=2)
    found = await names.resolved("example.com", 80)
    asked = list(server.asked)
    server.answer()
    await asyncio.gather(*slow)

    assert [str(one) for one in found] == ["127.0.0.1"]
    assert asked == ["slow-0.one.example.org", "slow-1.one.example.org", "example.com"]
    assert len(server.asked) == 6


@pytest.mark.parametrize("quick", ["two.co.example", "www.two.co.example", "TWO.co.example."])
async def test_a_free_thread_takes_the_domain_with_the_fewest_lookups(
    monkeypatch: pytest.MonkeyPatch, quick: str
) -> None:
    """
    Below one domain, too: many owners may have names there.
    """
    server, names = SlowNames(monkeypatch), Names(2, per_domain=2)
    slow = await waiting(names, server, *(f"slow-{n}.one.co.example" for n in range(4)), quick, begun=2)
    server.answer(1)
    await slow[-1]
    after = list(server.asked)
    server.answer()
    await asyncio.gather(*slow)

    assert after[2] == quick


async def test_among_equals_the_one_that_waits_longest_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    One after another, in one thread.
    """
    server, names = SlowNames(monkeypatch), Names(1, per_domain=1)
    hosts = ["slow.example", "a.example", "b.example", "c.example"]
    lookups = await waiting(names, server, *hosts, begun=1)
    server.answer()
    await asyncio.gather(*lookups)

    assert server.asked == hosts


async def test_a_lookup_that_nobody_waits_for_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    One that has begun keeps its thread, and the thread goes on with the next name.
    """
    server, names = SlowNames(monkeypatch), Names(1, per_domain=1)
    begun, given_up, last = await waiting(names, server, "slow.example", "a.example", "b.example", begun=1)
    begun.cancel()
    given_up.cancel()
    await asyncio.wait([begun, given_up])
    asked = list(server.asked)
    server.answer()
    await last

    assert asked == ["slow.example"]
    assert server.asked == ["slow.example", "b.example"]


async def test_a_name_waits_for_its_turn_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its own limit begins with its turn.
    """
    monkeypatch.setattr(resolving, "TURN_S", 0.05)
    server, names = SlowNames(monkeypatch), Names(1, per_domain=1)
    [slow] = await waiting(names, server, "slow.example", begun=1)
    with pytest.raises(NoTurn, match=r"a\.example"):
        await names.resolved("a.example", 80, within_s=0)
    server.answer()
    await slow

    assert server.asked == ["slow.example"]


async def test_a_name_server_has_a_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    And what is wrong with a name is raised where it is awaited.
    """
    server, names = SlowNames(monkeypatch), Names(1, per_domain=1)
    with pytest.raises(TimeoutError):
        await names.resolved("slow.example", 80, within_s=0.05)
    server.answer()
    monkeypatch.undo()
    with pytest.raises(OSError, match="is no name"):
        await names.resolved("a" * 64 + ".example", 80)


async def test_what_is_queued_for_the_threads_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    However many ask and go away while all threads wait for a name server.
    """
    server, names = SlowNames(monkeypatch), Names(2, per_domain=1)
    slow = await waiting(names, server, "slow.one.example", "slow.two.example", begun=2)
    for n in range(50):
        [gone] = await waiting(names, server, f"slow-{n}.example", begun=0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    queued = names._threads._work_queue.qsize()
    server.answer()
    await asyncio.gather(*slow)
    found = await names.resolved("example.com", 80)

    assert (queued, [str(one) for one in found]) == (0, ["127.0.0.1"])
