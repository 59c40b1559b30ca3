"""Whether this machine's worker is polling: exit 0 if the server has seen it, 1 if not.

Asks the server instead of the process, so that a worker that lives and no longer polls counts as ill.
Connects as the worker does: temporalio's environment configuration, `TEMPORAL_*`.
"""

import asyncio
import os
import socket
import sys

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig


async def main() -> int:
    queue = os.environ.get("REFOLD_TASK_QUEUE", "refold")
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    client = await Client.connect(**config)
    reply = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    # The SDK's own identity is PID@HOST, and refold adds the mark of the worker's ledger. The server forgets a poller
    # after five minutes of silence.
    host = socket.gethostname()
    if any(poller.identity.partition("~")[0].endswith(f"@{host}") for poller in reply.pollers):
        return 0
    seen = ", ".join(poller.identity for poller in reply.pollers) or "nobody"
    print(f"no worker of {host} polls task queue {queue!r}; polling: {seen}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    code = asyncio.run(main())
    sys.stderr.flush()
    # Not sys.exit: threads of the Temporal SDK may still be on their way out of Python, which then crashes.
    os._exit(code)
