"""What a request of a tool comes to, for each effect policy: the table in `docs/reference.md` is what happens."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from refold import Cmd, tool
from refold.core.commands import EffectPolicy
from refold.core.retry_policy import FailureKind
from refold.effects import current
from refold.effects.activities import Effects
from tests.effects.conftest import Bench, failure_in

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
TABLE = re.search(r"^\| the request \|.*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
MEANT = {"retried": FailureKind.TRANSIENT, "fails": FailureKind.PERMANENT, "unknown": FailureKind.UNKNOWN}


def rows() -> Iterator[tuple[str, str, str]]:
    """What a request meets, a policy, and the word for what follows; as the page says."""
    assert TABLE is not None
    head, _, *lines = [
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in TABLE[0].split("\n") if line
    ]
    for met, *words in lines:
        for policies, word in zip(head[1:], words, strict=True):
            yield from ((met, policy.strip(" `"), word) for policy in policies.split(","))


@contextmanager
def answering(met: str) -> Iterator[str]:
    """An address where a request meets what the row says."""
    status = re.match(r"HTTP (\d+)", met)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if met.startswith("is not sent"):
            server.close()
            yield address
            return

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    if status is not None:
                        connection.sendall(f"HTTP/1.1 {status[1]} X\r\ncontent-length: 0\r\n\r\n".encode())

        threading.Thread(target=serve, daemon=True).start()
        yield address
        server.shutdown(socket.SHUT_RDWR)


def posting(policy: str, address: str) -> list[Callable[..., Any]]:
    """A tool with this policy that posts to an address, and what it needs beside it."""

    @tool(effect="idempotent")
    async def give_back() -> None:
        """Compensates."""

    undo = give_back if policy == "compensate" else None

    @tool(effect=EffectPolicy(policy), undo=undo)
    async def post() -> None:
        (await current().http.post(f"{address}/orders", json={})).raise_for_status()

    return [post, give_back]


@pytest.mark.parametrize(("met", "policy", "word"), list(rows()))
async def test_a_failed_request_means_what_the_page_says(met: str, policy: str, word: str) -> None:
    """
    By a real request: retried by the task's policy, failed for good, or unknown, so that the probe is asked.
    """
    with answering(met) as address:
        tools = posting(policy, address)
        async with Effects(tools) as effects:
            with pytest.raises(ApplicationError) as caught:
                await Bench(effects).tool(Cmd.tool("c", tools[0]))

    assert failure_in(caught.value).kind is MEANT[word]
