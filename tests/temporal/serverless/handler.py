"""A function for AWS Lambda, and a process that calls it: `python -m tests.temporal.serverless.handler QUEUE N`."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from temporalio.contrib.aws.lambda_worker import LambdaWorkerConfig

from activities import TOOLS
from refold.temporal import Drained, lambda_handler
from workflows import forty_steps

DEPLOYMENT, BUILD = "errands", "b1"


class Context:
    """What Lambda tells a function of its call: how long it may take."""

    aws_request_id = "r1"
    invoked_function_arn = "arn:aws:lambda:eu-central-1:1:function:errands"

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int((self.until - time.monotonic()) * 1000)


def soon(config: LambdaWorkerConfig) -> None:
    """Less time to stop in, for effects that take milliseconds."""
    config.worker_config["graceful_shutdown_timeout"] = timedelta(seconds=2)
    config.shutdown_deadline_buffer = timedelta(seconds=3)


def main(queue: str, effects: str) -> None:
    """One call."""
    drain = Drained(effects=int(effects))
    handler = lambda_handler(
        [forty_steps], TOOLS, deployment=DEPLOYMENT, build_id=BUILD, task_queue=queue, drain=drain, configure=soon
    )
    handler({"detail-type": "queue not empty"}, Context(60.0))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
