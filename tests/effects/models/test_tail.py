"""The last few kilobytes of what a model says."""

from __future__ import annotations

import asyncio

import pytest

from refold.effects.models.tail import EVERY_S, TAIL_BYTES, Tail, TokenTail


async def test_the_first_piece_is_shown_at_once_and_the_rest_together() -> None:
    """
    Pieces that come quickly are shown as one, a quarter of a second later, without another piece having to come.
    """
    shown: list[TokenTail] = []
    later = asyncio.Event()

    def show(tail: TokenTail) -> None:
        shown.append(tail)
        if len(shown) == 2:
            later.set()

    tail = Tail(2, show)
    began = asyncio.get_running_loop().time()
    for piece in ("Dear", "", " Ada", ", hello"):
        tail.text(piece)
    assert shown == [TokenTail(attempt=2, offset=0, text="Dear")]

    await later.wait()

    assert shown[1:] == [TokenTail(attempt=2, offset=0, text="Dear Ada, hello")]
    assert asyncio.get_running_loop().time() - began >= EVERY_S * 0.9
    tail.close()


@pytest.mark.parametrize("character", ["x", "é", "😀"])
async def test_a_long_text_shows_its_end(character: str) -> None:
    """
    At most 4 KB, no half character, and the offset says where it starts.
    """
    tail = Tail(1, lambda _: None)
    for _ in range(10):
        tail.text(character * 700)
    newest = tail.newest()
    tail.close()

    assert newest.offset + len(newest.text) == 7000
    assert set(newest.text) == {character}
    assert TAIL_BYTES - 4 < len(newest.text.encode()) <= TAIL_BYTES
