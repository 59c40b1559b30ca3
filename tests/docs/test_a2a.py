"""The commands and the JavaScript of the A2A page run against a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from refold.a2a import Settings, a2a_app
from refold.a2a.serve import bound, url_of
from refold.testing import FakeEngine
from tests.a2a.conftest import serving
from tests.a2a.test_javascript import HERE, NODE
from tests.docs.pages import ROOT, blocks
from workflows.hello import Hello
from workflows.research_loop import ResearchLoop

PAGE = ROOT / "docs" / "a2a.md"
SHOWN = "http://127.0.0.1:9000"
CURL = [block.text for block in blocks(PAGE, "sh") if "curl" in block.text]


JAVASCRIPT, RESUMED = (block.text for block in blocks(PAGE, "js"))
QUESTION = "Which readers?"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A gateway to the skills that the page calls."""
    sock = bound("127.0.0.1", 0)
    where = url_of(sock, "127.0.0.1")
    verdicts = [{"decision": "NeedsHumanInput", "text": QUESTION}, {"decision": "Approved"}]
    answers = {"greeting": "Hello, Ada!", "research": "A draft.", "critique": verdicts}
    engine = FakeEngine([Hello, ResearchLoop], answers=answers)
    async with serving(a2a_app(engine, [Hello, ResearchLoop], Settings(url=where)), sock):
        yield where


@pytest.fixture
async def task(url: str) -> str:
    """A task that asks something."""
    said = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Tides"}]}}
    async with httpx.AsyncClient(timeout=60) as http:
        sent = await http.post(f"{url}/research_loop/message:send", json=said, headers={"A2A-Version": "1.0"})
    found: str = sent.json()["task"]["id"]
    return found


@pytest.mark.parametrize("command", CURL, ids=range(1, len(CURL) + 1))
async def test_a_command_of_the_page_is_answered(command: str, url: str, task: str) -> None:
    """
    As it stands there, but for the address; nothing that comes back is an error.
    """
    done = await asyncio.create_subprocess_exec(
        "sh", "-ec", command.replace(SHOWN, url),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "TASK": task},
    )  # fmt: skip
    out, _ = await done.communicate()

    assert done.returncode == 0
    for answer in answers(out.decode()):
        assert "error" not in answer


def answers(text: str) -> Iterator[dict[str, Any]]:
    """What one command after the other printed: objects, and the events of streams."""
    decoder = json.JSONDecoder()
    assert text
    while text := re.sub(r"\A(?:\s+|id:.*|:.*|data:)+", "", text):
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:]


async def test_the_javascript_of_the_page_asks_and_answers(url: str) -> None:
    """
    It sees the question, answers it in the same task, and gets what is handed over.
    """
    lines = await printed(JAVASCRIPT.replace(SHOWN, url))

    assert lines[-1] == "final.txt A draft."
    assert QUESTION in lines


async def test_the_javascript_of_the_page_goes_on_from_an_event(url: str) -> None:
    """
    The task as of that event comes first, then what followed.
    """
    lines = await printed(
        f"""
        import {{ SubscribeToTaskRequest }} from "@a2a-js/sdk";
        const last = "1.0";
        {JAVASCRIPT.replace(SHOWN, url)}
        {RESUMED}
        for await (const {{ payload }} of events) console.log(payload.value.metadata.refold.id, payload.$case);
        """
    )

    seen = lines[lines.index("final.txt A draft.") + 1 :]
    assert (seen[0], seen[-1]) == ("1.0 task", "6.2 statusUpdate")


async def printed(script: str) -> list[str]:
    """What a module prints, line by line."""
    node = await asyncio.create_subprocess_exec(
        NODE, "--input-type=module",
        cwd=HERE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await node.communicate(script.encode())
    assert node.returncode == 0, err.decode()
    return out.decode().splitlines()
