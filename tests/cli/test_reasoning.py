"""A model's reasoning is shown where somebody asks for it, and nowhere else."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from refold import ChatResult
from refold.cli.text.entries import Story
from refold.cli.text.output import Output
from refold.core.chat import Reply
from refold.core.fold.journal import Entry

ASIDE = ({"thinking": {"content": "The user is rude.", "signature": "c2lnbg=="}}, {"text": 4, "id": "t1"})
REPLY = Reply(text="Yes.", aside=ASIDE)
ENTRY = Entry(
    seq=1, at=datetime(2026, 1, 1, tzinfo=UTC), event=ChatResult(id="model", invocation_id="T/1.1", reply=REPLY)
)


def told(capsys: pytest.CaptureFixture[str], *, as_json: bool, reasoning: bool) -> str:
    """What is printed of a journal entry with reasoning."""
    out = Output(json=as_json)
    out.reasoning = reasoning
    Story(out).tell(ENTRY)
    return capsys.readouterr().out


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_reasoning_is_shown_on_request_alone(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    """
    Neither to people nor to programs; what else is said stays.
    """
    hidden = told(capsys, as_json=as_json, reasoning=False)
    shown = told(capsys, as_json=as_json, reasoning=True)

    assert "Yes." in hidden
    assert not any(secret in hidden for secret in ("rude", "c2lnbg"))
    assert "The user is rude." in shown


def test_everything_else_of_a_value_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Also at any depth, and where another value has such a name.
    """
    odd = {"aside": True, "thinking": {"content": "of a tool"}, "said": [REPLY.model_dump(mode="json")]}
    Output(json=True).value(odd)
    printed = json.loads(capsys.readouterr().out)

    assert printed["aside"] is True
    assert printed["thinking"] == {"content": "of a tool"}
    assert printed["said"][0] == {**odd["said"][0], "aside": [{"thinking": "hidden; --reasoning shows it"}, ASIDE[1]]}  # type: ignore[index]
