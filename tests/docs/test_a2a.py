"""The commands of the A2A page run against a gateway."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import httpx
import pytest

from refold.a2a import Settings, a2a_app
from refold.a2a.serve import bound, url_of
from refold.testing import FakeEngine
from tests.a2a.conftest import serving
from tests.docs.pages import ROOT, blocks
from workflows.hello import Hello

PAGE = ROOT / "docs" / "a2a.md"
SHOWN = "http://127.0.0.1:9000"
CURL = [block.text for block in blocks(PAGE, "sh") if "curl" in block.text]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A gateway to the skill that the page calls."""
    sock = bound("127.0.0.1", 0)
    where = url_of(sock, "127.0.0.1")
    engine = FakeEngine([Hello], answers={"greeting": "Hello, Ada!"})
    async with serving(a2a_app(engine, [Hello], Settings(url=where)), sock):
        yield where


@pytest.mark.parametrize("command", CURL, ids=range(1, len(CURL) + 1))
async def test_a_command_of_the_page_is_answered(command: str, url: str) -> None:
    """
    As it stands there, but for the address; nothing that comes back is an error.
    """
    said = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "I am Ada"}]}}
    async with httpx.AsyncClient() as http:
        sent = await http.post(f"{url}/message:send", json=said, headers={"A2A-Version": "1.0"})
    task = sent.json()["task"]["id"]
    done = await asyncio.create_subprocess_exec(
        "sh", "-ec", command.replace(SHOWN, url),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "TASK": task},
    )  # fmt: skip
    out, _ = await done.communicate()

    assert done.returncode == 0
    text = out.decode()
    if text.startswith("{"):
        decoder, rest = json.JSONDecoder(), text
        while rest:
            found, end = decoder.raw_decode(rest)
            assert "error" not in found
            rest = rest[end:].lstrip()
    else:
        assert "COMPLETED" in text
