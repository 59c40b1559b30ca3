"""A real Prometheus and its `promtool`: those on PATH, else Debian's package, unpacked beside the environment.

`python -m tests.services.prometheus` gets them, as `make test` does. Nothing is installed, and no right is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.services.serving import free_port

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv" / "prometheus"
NAMES = ("prometheus", "promtool")
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"

MISSING = """the tests need Prometheus, with promtool, and cannot get it:
{why}
Put both on PATH: `apt-get install prometheus` on Debian and Ubuntu; elsewhere https://prometheus.io/download"""


class NoPrometheus(Exception):
    """Neither PATH nor Debian's packages have it; the message says what to do."""


def binary(name: str) -> Path:
    """The path of `prometheus` or `promtool`.

    Raises:
        NoPrometheus: They are not there, and cannot be got.
    """
    kept = HOME / "usr" / "bin" / name
    if not kept.exists():
        if (found := shutil.which(name)) is not None:
            return Path(found)
        get()
    return kept


def get() -> None:
    """Get both, unless they are there.

    Raises:
        NoPrometheus: They are not there, and cannot be got.
    """
    if all(shutil.which(name) for name in NAMES) or all((HOME / "usr" / "bin" / name).exists() for name in NAMES):
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoPrometheus(MISSING.format(why="this is no Debian, which has it as a package"))
    with tempfile.TemporaryDirectory() as folder:
        done = _run(["apt-get", "download", "prometheus"], folder)
        if done.returncode:  # a fresh machine has no list of packages
            _run(["apt-get", "update"], folder)
            done = _run(["apt-get", "download", "prometheus"], folder)
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if not packages:
            raise NoPrometheus(MISSING.format(why=done.stderr.strip() or "apt-get gave no package"))
        _run(["dpkg-deb", "--extract", str(packages[0]), f"{folder}/unpacked"], folder)
        for name in NAMES:
            target = HOME / "usr" / "bin" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            shutil.copy2(Path(folder) / "unpacked" / "usr" / "bin" / name, part)
            part.replace(target)  # at once, or another process might run half of it


def _run(command: Sequence[str], folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run([binary("promtool"), *words], capture_output=True, text=True, check=False)


def rules() -> list[dict[str, Any]]:
    """The alerts of the repository, in order."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


class Prometheus:
    """A running Prometheus.

    Attributes:
        url: Of its API.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(base_url=url, timeout=60)

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now.

        Raises:
            AssertionError: It is no expression.
        """
        answer = (await self._http.get("/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    async def alerts(self) -> list[dict[str, Any]]:
        """The alerts that fire or will fire."""
        found: list[dict[str, Any]] = (await self._http.get("/api/v1/alerts")).json()["data"]["alerts"]
        return found

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        return {one["labels"]["alertname"] for one in await self.alerts() if one["state"] == "firing"}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


@asynccontextmanager
async def running(
    folder: Path, targets: Sequence[str], rules: Mapping[str, Any] | None = None
) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes once a second, inside the block.

    Args:
        folder: For its data and its log.
        targets: `host:port` of what it scrapes.
        rules: Alerts that it evaluates once a second; None for none.
    """
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "refold", "static_configs": [{"targets": list(targets)}]}],
    }
    if rules is not None:
        (folder / "rules.yml").write_text(json.dumps(rules))
        config["rule_files"] = ["rules.yml"]
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process: Process = await asyncio.create_subprocess_exec(
            binary("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    try:
        await _until_ready(prometheus, process, folder / "prometheus.log")
        yield prometheus
    finally:
        await prometheus.aclose()
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_ready(prometheus: Prometheus, process: Process, log: Path) -> None:
    async with asyncio.timeout(150), httpx.AsyncClient(timeout=60) as http:
        while True:
            assert process.returncode is None, f"Prometheus ended; see {log}"
            with contextlib.suppress(httpx.TransportError):
                if (await http.get(f"{prometheus.url}/-/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.05)  # a pause between questions


if __name__ == "__main__":
    try:
        get()
    except NoPrometheus as error:
        sys.exit(str(error))
