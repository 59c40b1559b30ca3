"""What traces take from the headers of others, and who may read them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs
from temporalio.api.common.v1 import Payload
from temporalio.worker import WorkflowInterceptorClassInput

from refold import DefinitionError
from refold.temporal.traced import HEADER, TELL, Moment
from refold.temporal.tracing import Tracing, provider_of

GOOD = b'{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'


def header(data: bytes, encoding: str = "json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding.encode()}, data=data)


UNREADABLE = [
    header(b"no JSON"),
    header(b"xx", "binary/encrypted"),
    header(b"5"),
    header(b"null"),
    header(b'{"traceparent": 5}'),
    header(b'{"traceparent": ["a"]}'),
    header(b'{"traceparent": "a"}'),
    header(b'{"tracestate": "a=b"}'),
]


@pytest.mark.parametrize("unreadable", UNREADABLE, ids=lambda one: one.data.decode())
def test_a_header_that_cannot_be_read_is_none(unreadable: Payload) -> None:
    """
    Anybody can send one: a task, its effects and who goes on from it have no trace then, and nothing fails.
    """
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = Tracing(provider)
    outside: WorkflowInterceptorClassInput = WorkflowInterceptorClassInput(unsafe_extern_functions={})
    tracing.workflow_interceptor_class(outside)
    tell = outside.unsafe_extern_functions[TELL]

    assert tracing.context({HEADER: unreadable}) is None
    assert tell(Moment(parent=unreadable, name="paused", at_ns=1)) is None
    assert spans.get_finished_spans() == ()
    tell(Moment(parent=header(GOOD), name="paused", at_ns=1, link=unreadable))
    [told] = spans.get_finished_spans()
    assert told.links == ()


def test_a_callers_trace_is_read() -> None:
    """
    By the header that Temporal's own interceptor writes.
    """
    context = Tracing(TracerProvider()).context({HEADER: header(GOOD)})

    assert trace.get_current_span(context).get_span_context().trace_id == 0x0AF7651916CD43DD8448EB211C80319C


def test_a_file_of_traces_is_its_users_own(tmp_path: Path) -> None:
    """
    From the start: with content, spans have what people wrote.
    """
    file = tmp_path / "traces.jsonl"
    provider = provider_of(str(file))
    with provider.get_tracer("t").start_as_current_span("paused"):
        pass

    assert '"name": "paused"' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_spans_that_a_full_disk_does_not_take_are_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    They are lost, and nothing else: once there is room again, each line is a span, also after half of one.
    """
    file, write = tmp_path / "traces.jsonl", os.write
    tracer = provider_of(str(file)).get_tracer("t")

    def traced(*names: str) -> None:
        for name in names:
            with tracer.start_as_current_span(name):
                pass

    with capture_logs() as logs:
        file.unlink()
        file.symlink_to("/dev/full")
        traced("a", "b")
        file.unlink()
        traced("c")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda at, data: write(at, data[: len(data) // 2]))
            traced("d")
        traced("e", "f")

    lines = file.read_text().splitlines()
    assert [json.loads(lines[number])["name"] for number in (0, 2, 3)] == ["c", "e", "f"]
    assert [(line["event"], line["error"]) for line in logs] == [("traces_lost", "No space left on device")] * 2


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A collector at OTLP's address; it answers with the statuses that the list has, then with 200."""
    statuses: list[int] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(statuses.pop(0) if statuses else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        try:
            yield statuses
        finally:
            server.shutdown()
            serving.join()


def test_spans_that_a_collector_does_not_take_are_logged_once(
    collector: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    """
    By refold's own log, with the reason, and not with a line of the exporter's for each attempt.
    """
    provider = provider_of("OTLP")
    with capture_logs() as logs:
        for status in (401, 401, 200, 400):
            collector[:] = [status]
            with provider.get_tracer("t").start_as_current_span("paused"):
                pass
            provider.force_flush()
    provider.shutdown()

    assert [line["event"] for line in logs] == ["traces_lost"] * 2
    assert "401" in logs[0]["error"]
    assert logs[0]["collector"] == os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert capfd.readouterr().err == ""


def test_an_address_is_no_file() -> None:
    """
    The collector's address belongs in OpenTelemetry's own setting.
    """
    with pytest.raises(DefinitionError, match=r"REFOLD_TRACES=otlp, and OTEL_EXPORTER_OTLP_ENDPOINT"):
        provider_of("http://localhost:4318")
