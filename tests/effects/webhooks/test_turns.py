"""Which post may begin, where many wait."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.effects.webhooks import turns
from refold.effects.webhooks.turns import Turns


class Posts:
    """Posts that end when the test says so.

    Attributes:
        begun: The hosts of those that have begun, in this order.
    """

    def __init__(self) -> None:
        self.turns = Turns()
        self.begun: list[str] = []
        self.waited: list[bool] = []
        self._ends: dict[asyncio.Task[None], asyncio.Event] = {}

    async def to(self, *hosts: str) -> list[asyncio.Task[None]]:
        """Post to these hosts; those that can begin have begun then."""
        new = [asyncio.create_task(self._post(host)) for host in hosts]
        self._ends |= {task: asyncio.Event() for task in new}
        await settled()
        return new

    async def end(self, *posts: asyncio.Task[None]) -> None:
        """Let posts end."""
        for post in posts:
            self._ends[post].set()
        await settled()

    async def _post(self, host: str) -> None:
        async with self.turns.of(host) as waited:
            self.begun.append(host)
            self.waited.append(waited)
            task = asyncio.current_task()
            assert task is not None
            await self._ends[task].wait()


async def settled() -> None:
    """Give every task its turn until nothing moves."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_free_place_goes_to_the_host_with_the_fewest_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Not to the one that has waited longest: a host with many posts that hang would take every place.
    """
    monkeypatch.setattr(turns, "AT_ONCE", 3)
    posts = Posts()
    first, second, _, *_ = await posts.to("slow", "slow", "slow", "slow", "slow", "quick")
    await posts.end(first)
    await posts.end(second)

    assert posts.begun == ["slow", "slow", "slow", "quick", "slow"]
    assert posts.waited == [False, False, False, True, True]
    await posts.end(*posts._ends)


async def test_equal_hosts_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    One whose posts came first does not send all of them first.
    """
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    posts = Posts()
    for post in await posts.to("x", "a", "a", "a", "b", "b", "c"):
        await posts.end(post)
    await posts.end(*posts._ends)

    assert posts.begun == ["x", "a", "b", "c", "a", "b", "a"]


@given(st.lists(st.tuples(st.sampled_from(["post", "end", "cancel"]), st.sampled_from("abc"), st.integers(0, 9))))
async def test_no_place_is_lost_and_none_is_given_twice(steps: list[tuple[str, str, int]]) -> None:
    """
    However posts begin, end and are given up: never more than allowed, and nobody waits where there is room.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "AT_ONCE", 3)
        patch.setattr(turns, "AT_ONCE_PER_HOST", 2)
        free, under_way, waiting = Turns(), list[tuple[str, asyncio.Event]](), Counter[str]()
        open_posts: list[tuple[asyncio.Task[None], asyncio.Event]] = []

        async def post(host: str, end: asyncio.Event) -> None:
            waiting[host] += 1
            try:
                async with free.of(host):
                    waiting[host] -= 1
                    under_way.append((host, end))
                    try:
                        await end.wait()
                    finally:
                        under_way.remove((host, end))
                        waiting[host] += 1
            finally:
                waiting[host] -= 1

        for what, host, number in steps:
            if what == "post":
                end = asyncio.Event()
                open_posts.append((asyncio.create_task(post(host, end)), end))
            elif open_posts:
                task, end = open_posts.pop(number % len(open_posts))
                end.set() if what == "end" else task.cancel()
            if number % 2:  # else the next step comes in the same moment
                await settled()
            counts = Counter(host for host, _ in under_way)
            assert counts.total() <= 3
            assert all(count <= 2 for count in counts.values())
        await settled()
        counts = Counter(host for host, _ in under_way)
        assert counts.total() == 3 or not any(number and counts[host] < 2 for host, number in waiting.items())
        for task, _ in open_posts:
            task.cancel()
        await asyncio.gather(*(task for task, _ in open_posts), return_exceptions=True)
        assert (free._all, free._under_way) == (0, Counter())
