"""What a tool's module loads."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"httpx", "httpx2", "openai", "pydantic_ai", "sqlalchemy", "structlog", "temporalio"}


def test_a_tools_module_stays_light() -> None:
    """
    `refold.effects` loads neither Temporal nor a provider: skills import their tools' modules, in the sandbox too.
    """
    script = "import sys, refold.effects; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert HEAVY.isdisjoint(done.stdout.split())
