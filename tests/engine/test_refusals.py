"""What every engine refuses of a message, before it reaches a task."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest

from refold import Content, InputRejected, UserMessage
from refold.engine.refusals import message_of
from refold.testing import FakeEngine
from workflows.hello import Hello, HelloWorkflow


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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"skill": Hello}, "by the id of its skill.* write 'hello'$", id="the skill"),
        pytest.param(
            {"skill": HelloWorkflow}, "by the id of its skill, a text; got .*HelloWorkflow", id="its workflow"
        ),
        pytest.param({"skill": None}, "by the id of its skill, a text; got None", id="no skill"),
        pytest.param({"skill": ""}, "by the id of its skill, a text; got ''", id="an empty name of a skill"),
        pytest.param({"task_id": UUID(int=1)}, "task_id is a text or None; got UUID.* write str", id="a UUID"),
        pytest.param(
            {"start_delay": 60}, r"start_delay is a timedelta or None; got 60 \(int\); write timedelta", id="seconds"
        ),
    ],
)
async def test_a_start_says_what_it_takes_in_place_of_what_was_given(given: dict[str, Any], said: str) -> None:
    """
    A skill is given itself to `play` and `ctx.skill`, so a program may give it to `start`, too.
    """
    with pytest.raises(InputRejected, match=said):
        await FakeEngine([Hello]).start(**{"skill": "hello", "content": Content.from_text("Ada"), **given})
