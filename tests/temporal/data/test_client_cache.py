"""A client that is kept: opened once, never under another loop, and always closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from refold.temporal.data.buckets.client_cache import Kept


class Door:
    """Opens clients, which are numbers, and knows which are open in which loop."""

    def __init__(self, *, failing: int = 0) -> None:
        self.failing = failing
        self.opened = 0
        self.open: dict[int, asyncio.AbstractEventLoop] = {}

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[int]:
        self.opened += 1
        number = self.opened
        await asyncio.sleep(0)
        if number <= self.failing:
            raise PermissionError(f"client {number} is refused")
        self.open[number] = asyncio.get_running_loop()
        try:
            yield number
        finally:
            del self.open[number]


async def _used(kept: Kept[int], door: Door, *, turns: int = 0, fails: bool = False) -> int:
    async with kept() as client:
        for _ in range(turns):
            await asyncio.sleep(0)
            assert door.open[client] is asyncio.get_running_loop()
        if fails:
            raise ConnectionError
        return client


def test_a_client_serves_all_uses_of_a_loop_and_is_closed_with_it() -> None:
    """
    Uses at a time and one after the other share it; another loop has another.
    """
    door = Door()
    kept = Kept(door)

    async def uses() -> set[int]:
        at_once = await asyncio.gather(*(_used(kept, door, turns=3) for _ in range(5)))
        return {*at_once, await _used(kept, door)}

    assert [asyncio.run(uses()), asyncio.run(uses())] == [{1}, {2}]
    assert door.open == {}


def test_a_client_that_could_not_be_opened_is_opened_anew() -> None:
    """
    All who wait for it are told why.
    """
    door = Door(failing=1)
    kept = Kept(door)

    async def uses() -> int:
        told = await asyncio.gather(*(_used(kept, door) for _ in range(3)), return_exceptions=True)
        assert [str(one) for one in told] == ["client 1 is refused"] * 3
        return await _used(kept, door)

    assert asyncio.run(uses()) == 2
    assert door.open == {}


Use = st.tuples(
    st.integers(0, 4),  # turns of the loop before it begins
    st.integers(0, 4),  # turns that it takes
    st.sampled_from(["ends", "fails", "is canceled"]),
)


@given(st.lists(Use, max_size=8), st.integers(0, 2))
def test_whatever_happens_to_some_uses_the_others_have_an_open_client(
    uses: list[tuple[int, int, str]], failing: int
) -> None:
    """
    And each client is closed by the time the loop has ended.
    """
    door = Door(failing=failing)
    kept = Kept(door)

    async def one(before: int, turns: int, fate: str) -> None:
        for _ in range(before):
            await asyncio.sleep(0)
        use = asyncio.create_task(_used(kept, door, turns=turns, fails=fate == "fails"))
        if fate == "is canceled":
            for _ in range(turns):
                await asyncio.sleep(0)
            use.cancel()
        try:
            await use
        except ConnectionError:
            assert fate == "fails"
        except PermissionError:
            assert failing
        except asyncio.CancelledError:
            assert fate == "is canceled"

    async def all_of_them() -> None:
        await asyncio.gather(*(one(*use) for use in uses))
        door.failing = 0
        await _used(kept, door)
        await asyncio.sleep(0)  # in which a client that was left closes
        assert len(door.open) == 1

    asyncio.run(all_of_them())
    assert door.open == {}
