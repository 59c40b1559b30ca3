"""What a worker writes to its log."""

from __future__ import annotations

import json
import subprocess
import sys

CHANGE = """
import structlog
from refold.temporal.worker.logs import log_to_stderr

log_to_stderr(as_json=True)
structlog.get_logger().info("state_transition", task_id="t", timestamp="2026-01-02T03:04:05+00:00")
structlog.get_logger().info("worker_started")
structlog.get_logger().debug("effect_done")
"""


def test_a_change_keeps_the_time_it_happened_at() -> None:
    """
    Lines are JSON on stderr, from INFO on, each with a time: the task's own where it has one.
    """
    done = subprocess.run([sys.executable, "-c", CHANGE], capture_output=True, text=True, timeout=60, check=True)

    change, started = (json.loads(line) for line in done.stderr.splitlines())

    assert done.stdout == ""
    assert change == {
        "event": "state_transition",
        "level": "info",
        "task_id": "t",
        "timestamp": "2026-01-02T03:04:05+00:00",
    }
    assert started["event"] == "worker_started"
    assert started["timestamp"]
