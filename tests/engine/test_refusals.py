"""What every engine refuses of a message, before it reaches a task."""

from __future__ import annotations

import re
from typing import Any

import pytest

from refold import Content, InputRejected, UserMessage
from refold.engine.refusals import message_of
from refold.testing import FakeEngine
from workflows.hello import Hello


@pytest.mark.parametrize("given", ["Ada", {"name": "Ada"}, None, 5], ids=["text", "data", "nothing", "a number"])
async def test_a_message_that_is_no_content_is_told_how_to_write_one(given: Any) -> None:
    """
    Agents and `play` take a text, so a program may give one to an engine, too.
    """
    says = re.escape(f"a message must be Content, not {given!r}") + r".* write `Content\.from_text\(\.\.\.\)`"
    engine = FakeEngine([Hello], auto=False)
    await engine.start("hello", Content.from_text("Ada"), task_id="h")

    for call in (engine.start("hello", given), engine.send("h", given)):
        with pytest.raises(InputRejected, match=says):
            await call


def test_the_other_fields_of_a_message_are_checked() -> None:
    """
    A sender's ids have a length.
    """
    assert message_of(Content.from_text("Ada"), message_id="m") == UserMessage(
        content=Content.from_text("Ada"), message_id="m"
    )
    with pytest.raises(InputRejected, match="message_id: String should have at most"):
        message_of(Content.from_text("Ada"), message_id="m" * 10_000)
