"""The tools of the ReAct skill, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from temporalio.exceptions import ApplicationError

from activities import TOOLS
from activities.dictionary import define_word
from activities.sessions import close_turn, open_turn
from refold import Cmd
from refold.effects.activities import Effects
from tests.effects.conftest import Bench, failure_in
from tests.services.library import Library


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The dictionary and the sessions."""
    with Library() as library:
        for name, value in library.environment.items():
            monkeypatch.setenv(name, value)
        yield library


async def test_a_word_is_defined(library: Library) -> None:
    """
    By its first definition.
    """
    library.words["ebb"] = "the tide going out"

    async with Effects(TOOLS) as effects:
        assert await Bench(effects).tool(Cmd.tool("t", define_word, word="ebb")) == "the tide going out"


async def test_a_word_that_nobody_knows_is_final(library: Library) -> None:
    """
    404 is no reason to try again.
    """
    async with Effects(TOOLS) as effects:
        with pytest.raises(ApplicationError) as caught:
            await Bench(effects).tool(Cmd.tool("t", define_word, word="xyzzy"))

    assert failure_in(caught.value).type == "http_404"


async def test_a_turn_is_opened_and_closed_once(library: Library) -> None:
    """
    However often a call with the same key is repeated.
    """
    opens = Cmd.tool("t", open_turn, session_id="s1", asked="What is an ebb?", last=5, key="turn:T")
    closes = Cmd.tool("t", close_turn, session_id="s1", answered="The tide going out.", key="answer:T")

    async with Effects(TOOLS) as effects:
        bench = Bench(effects)
        assert [await bench.tool(opens) for _ in range(2)] == [[], []]
        assert [await bench.tool(closes) for _ in range(2)] == [None, None]
        later = opens.model_copy(update={"key": "turn:U", "args": {**opens.args, "asked": "And a flood?"}})
        assert await bench.tool(later) == [{"asked": "What is an ebb?", "answered": "The tide going out."}]

    assert [turn["asked"] for turn in library.sessions["s1"]] == ["What is an ebb?", "And a flood?"]


@pytest.mark.parametrize("server", ["", None])
async def test_a_session_without_an_owners_key_says_what_to_give(
    server: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Else nobody could say whose session it is. A setting that is empty names no service.
    """
    monkeypatch.delenv("SESSIONS_URL", raising=False)
    if server is not None:
        monkeypatch.setenv("SESSIONS_URL", server)

    async with Effects(TOOLS) as effects:
        for call in (
            Cmd.tool("t", open_turn, session_id="s1", asked="x", last=5),
            Cmd.tool("t", close_turn, session_id="s1", answered="x"),
        ):
            with pytest.raises(ApplicationError, match="the worker does not know whose memory this is"):
                await Bench(effects).tool(call)
