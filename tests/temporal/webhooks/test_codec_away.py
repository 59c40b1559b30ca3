"""While a codec cannot encrypt, a delivery goes on from where it is, and posts nothing again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from uuid import uuid4

from starlette.responses import Response
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from refold.effects.webhooks.post import Poster
from refold.effects.webhooks.ssrf import Screen
from refold.temporal import TemporalEngine, TemporalWebhooks
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Off
from refold.temporal.dev import DevServer
from refold.temporal.encryption import Encryption
from refold.temporal.webhooks.names import workflow_id
from refold.webhooks import Shape, Update, Webhook
from tests.services.receiver import Receiver


class Away(Encryption):
    """Cannot encrypt a delivery's progress at first."""

    refusals = 2

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if self.refusals and any(b'"cursor"' in one.data for one in payloads):
            self.refusals -= 1
            raise ConnectionError("the key service does not answer")
        return await super().encode(payloads)


async def three(task_id: str, shape: Shape, after: str | None) -> AsyncGenerator[Update, None]:
    """The updates of a task that has ended."""
    for number in range(int(after or "0") + 1, 4):
        yield Update(id=str(number), cursor=str(number), body=json.dumps({"n": number}).encode())


async def test_each_update_is_posted_once(server: DevServer) -> None:
    """
    The process that delivers is there all the while, and knows how far it came.
    """
    converter = data_converter(Off(), Away({"k": bytes(range(32))}))
    client = await Client.connect(server.address, namespace=server.namespace, data_converter=converter)
    engine, task_id = TemporalEngine(client, "away"), f"away-{uuid4().hex[:8]}"
    poster = Poster(Screen.from_env(loopback=True))
    with Receiver(lambda _: Response()) as receiver:
        async with TemporalWebhooks(engine, three, poster, task_queue=f"webhooks-{task_id}") as webhooks:
            await webhooks.put(task_id, Webhook(id="w", url=receiver.url))
            how: str = await client.get_workflow_handle(workflow_id(task_id, "w"), result_type=str).result()

    assert how == "delivered"
    assert [post.json["n"] for post in receiver.posts] == [1, 2, 3]
