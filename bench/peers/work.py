"""The work that every engine does: a task is a loop of steps, each with the same effect.

Nothing but the standard library is imported, since each engine has an environment of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

STEP_BYTES = 1_000
"""What each step returns, in ASCII characters; the task keeps all of them."""

KILL_AT = 10
"""The effect in which a task whose name begins with `kill` dies, the first time."""

LOG, SERVER, FOLDER = "PEERS_LOG", "PEERS_SERVER", "PEERS_FOLDER"
"""Variables of the environment: the file of all effects, what the server is reached by (JSON), a folder for state."""


def effect(task: str, step: int) -> str:
    """Append a line to a file, and return text that does not compress well.

    Args:
        step: From 1.
    """
    line = _line(task, step)
    with Path(os.environ[LOG]).open("a+") as log:
        log.write(line)
        log.flush()
        if step == KILL_AT and task.startswith("kill"):
            log.seek(0)
            if log.read().count(line) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    return _returned(step)


def happened(task: str, step: int) -> str | None:
    """What the effect returned, if it took place: the probe of engines that have one."""
    return _returned(step) if _line(task, step) in Path(os.environ[LOG]).read_text() else None


def _line(task: str, step: int) -> str:
    return f"{task} {step}\n"


def _returned(step: int) -> str:
    return random.Random(step).randbytes(STEP_BYTES // 2).hex()


def server(name: str) -> str:
    """What the server is reached by."""
    return str(json.loads(os.environ[SERVER])[name])


def folder() -> Path:
    """Where an engine without a server keeps its state."""
    return Path(os.environ[FOLDER])
