"""Where a process shows its metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue

import httpx
import pytest

from refold import DefinitionError
from refold.temporal import measure
from refold.temporal.seen.runtime import METRICS_ENV, address
from tests.services.serving import free_port

SCRIPT = """
import sys
from refold.seen import meters, metrics
from refold.temporal import measure
print(measure(None), flush=True)
meters.count(metrics.TASKS_ENDED, "shop", "completed")
meters.observe(metrics.STATE_SECONDS, 90.0, "shop", "running")
print("counted", flush=True)
sys.stdin.read()
"""


@contextmanager
def measured(where: str, **env: str) -> Iterator[str]:
    """A process that has counted something; yields where it says that its metrics are."""
    command, given = [sys.executable, "-c", SCRIPT], {**os.environ, METRICS_ENV: where, **env}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=given, text=True) as process:
        assert process.stdout is not None
        shown = process.stdout.readline().strip()
        assert process.stdout.readline() == "counted\n"
        yield shown
        process.kill()


def test_prometheus_finds_them() -> None:
    """
    By the names that it recommends, with help texts and refold's own buckets.
    """
    with measured(f"localhost:{free_port()}") as shown:
        told = httpx.get(shown, timeout=60).text

    assert "# HELP refold_tasks_ended_total Tasks that ended.\n" in told
    assert 'refold_tasks_ended_total{ending="completed",skill="shop"} 1\n' in told
    assert 'refold_state_seconds_bucket{skill="shop",state="running",le="60"} 0\n' in told
    assert 'refold_state_seconds_bucket{skill="shop",state="running",le="300"} 1\n' in told


@pytest.mark.slow
def test_a_collector_gets_them() -> None:
    """
    Over HTTP, as OpenTelemetry has it, with the headers that its own setting names, percent-encoded.
    """
    came: Queue[tuple[str, str | None, bytes]] = Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            came.put((self.path, self.headers["x-key"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        with measured(url, OTEL_EXPORTER_OTLP_HEADERS="x-key=Basic%20c2VjcmV0%3D%3D") as shown:
            path, key, body = came.get(timeout=60)
            while b"refold_tasks_ended" not in body:
                path, key, body = came.get(timeout=60)
        server.shutdown()

    assert shown == url
    assert (path, key) == ("/v1/metrics", "Basic c2VjcmV0==")
    assert b"refold_state_seconds" in body


@pytest.mark.parametrize(
    "given", ["9464", "localhost", "127.0.0.1:0", "127.0.0.1:70000", "ftp://collector:4317", "http://", "host:٣"]
)
def test_a_place_that_is_none_is_refused(given: str) -> None:
    """
    The error says what came, what is expected, and by which setting it came.
    """
    with pytest.raises(DefinitionError, match=r"(?s)--metrics.*HOST:PORT"):
        measure(given)


@pytest.mark.parametrize("host", ["a..b", ".example", "x" * 70])
def test_a_host_that_can_have_no_address_is_refused(host: str) -> None:
    """
    As one that nobody knows, and not by an error of the library that looks it up.
    """
    with pytest.raises(DefinitionError, match=rf"(?s)--metrics.*host '{host}' is not known: "):
        address(f"{host}:9464", "--metrics")


def test_addresses() -> None:
    """
    IPv6 addresses stand in brackets.
    """
    assert address("[::1]:9464", "--metrics") == ("::1", 9464)
    assert address("127.0.0.1:0", "--health", free=True) == ("127.0.0.1", 0)
