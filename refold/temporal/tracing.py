"""Traces of tasks: one trace for each task, from the call that starts it through its model calls and tools.

    pip install 'refold[otel]'
    export REFOLD_TRACES=/var/log/refold/traces.jsonl    # or: otlp

The trace travels in the headers of Temporal's calls, as Temporal's own interceptor writes them, so it holds over
workers, restarts, new runs and parts. A task that recovers another one goes on in that one's trace. What somebody sends
to a task, such as a decision, is a trace of its own, and the task's span of it has a link to that.

Rule 1: without a trace at its start, a task has no header and no span.
Rule 2: no span has a prompt, a reply, arguments, a result, an error's text or a key, unless content is switched on.
Rule 3: nothing is traced on replay. What is performed again is traced again, with its attempt.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import activity, client, worker, workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.exceptions import ApplicationError

from refold.core.errors import DefinitionError
from refold.core.lineage.ids import place
from refold.effects.short.stretch import STRETCH
from refold.effects.tracing import TRACED
from refold.engine.arguments import defining, takes
from refold.seen.logs import logger
from refold.temporal.traced import HEADER, TELL, Moment, tell

ENV = "REFOLD_TRACES"
CONTENT_ENV = "REFOLD_TRACES_CONTENT"
OTLP = "otlp"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Where OpenTelemetry's exporter reads the collector's address, first to last."""

FLUSH_S = 2.0
"""How long a process that ends waits for a collector that does not answer, in seconds."""

log = logger(__name__)

Attributes = Mapping[str, str | int | float | bool]

_origin: ContextVar[Link | None] = ContextVar("refold_origin", default=None)
"""The trace of the task that a start goes on from."""


@takes(defining("Tracing", "interceptor"))
class Tracing(TracingInterceptor):
    """Traces tasks: give it to `Client.connect(interceptors=[...])`; workers of that client trace, too.

    `REFOLD_TRACES` does the same for refold's commands, gateways and workers.

    Attributes:
        provider: Receives the spans.
        content: Whether spans have keys, the texts of errors, and what models and tools said and were told.
    """

    def __init__(self, provider: TracerProvider, *, content: bool = False) -> None:
        """Trace with this provider.

        Args:
            provider: Receives the spans.
            content: See the class.
        """
        super().__init__(provider.get_tracer("refold", version("refold")))
        self.text_map_propagator = TraceContextTextMapPropagator()  # no baggage: a caller may put anything into it
        self.provider, self.content = provider, content

    @cached_property
    def instrument(self) -> Any:
        """What pydantic-ai traces requests to providers with, by OpenTelemetry's GenAI conventions."""
        from pydantic_ai.models.instrumented import InstrumentationSettings

        return InstrumentationSettings(
            tracer_provider=self.provider,
            include_content=self.content,
            include_binary_content=False,
            include_model_request_parameters=False,
        )

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        """See the SDK."""
        return _Client(next, self)

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        """See the SDK."""
        return _Activity(next, self)

    def workflow_interceptor_class(  # type: ignore[override]  # another one than Temporal's own
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor]:
        """See the SDK."""
        input.unsafe_extern_functions[TELL] = self._tell
        return _Workflow

    def intercept_nexus_operation(
        self, next: worker.NexusOperationInboundInterceptor
    ) -> worker.NexusOperationInboundInterceptor:
        """See the SDK."""
        return next

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """A span while the block is open. Of an error it has the type only, unless content is switched on."""
        with self.tracer.start_as_current_span(
            name, context, kind, dict(attributes), links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except asyncio.CancelledError:
                span.set_attribute("refold.canceled", True)
                raise
            except Exception as error:
                known = error.type if isinstance(error, ApplicationError) else None
                span.set_attribute("error.type", known or type(error).__name__)
                span.set_status(Status(StatusCode.ERROR, str(error) if self.content else None))
                raise

    @asynccontextmanager
    async def going_on_from(self, engine_client: client.Client, task_id: str) -> AsyncIterator[None]:
        """Continue the trace of this task with what the block starts, and link it to the caller's span."""
        header = await _header_of(engine_client, task_id)
        context = None if header is None else self.context({HEADER: header})
        if context is None:
            yield
            return
        mine = trace.get_current_span().get_span_context()
        link = Link(mine if mine.is_valid else trace.get_current_span(context).get_span_context())
        attached, told = attach(context), _origin.set(link)
        try:
            yield
        finally:
            _origin.reset(told)
            detach(attached)

    def headers(self, known: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Headers with the current trace."""
        return self._context_to_headers(known)

    def context(self, headers: Mapping[str, Payload]) -> Context | None:
        """The trace in headers; None without one that can be read. Anybody can send a header, and an error would fail
        the workflow task, again and again."""
        try:
            found = self._context_from_headers(headers)
        except Exception:  # noqa: BLE001 - whatever the converter and the propagator say of bytes from outside
            return None
        return found if trace.get_current_span(found or Context()).get_span_context().is_valid else None

    def _tell(self, moment: Moment) -> Payload | None:
        """Make the span of a moment; returns the header with which something goes on below it, None without a trace."""
        context = self.context({HEADER: moment.parent})
        if context is None:
            return None
        sender = None if moment.link is None else self.context({HEADER: moment.link})
        links = [] if sender is None else [Link(trace.get_current_span(sender).get_span_context())]
        span = self.tracer.start_span(
            moment.name, context, attributes=moment.attributes, links=links, start_time=moment.at_ns
        )
        span.end(moment.at_ns)
        carrier: dict[str, Any] = {}
        self.text_map_propagator.inject(carrier, trace.set_span_in_context(span, context))
        return self.payload_converter.to_payloads([carrier])[0]


async def _header_of(engine_client: client.Client, task_id: str) -> Payload | None:
    async for event in engine_client.get_workflow_handle(task_id).fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.header.fields.get(HEADER)
    return None


class _Client(client.OutboundInterceptor):
    """Spans of what callers do. Queries have none: they change nothing, and one look takes several."""

    def __init__(self, next: client.OutboundInterceptor, tracing: Tracing) -> None:
        super().__init__(next)
        self._tracing = tracing

    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        about = {"refold.task_id": input.id, "refold.skill": input.workflow}
        origin = _origin.get()
        with self._tracing.span(
            f"start {input.workflow}", about, kind=SpanKind.CLIENT, links=[] if origin is None else [origin]
        ):
            input.headers = self._tracing.headers(input.headers)
            return await super().start_workflow(input)

    async def signal_workflow(self, input: client.SignalWorkflowInput) -> None:
        with self._tracing.span(f"send {input.signal}", {"refold.task_id": input.id}, kind=SpanKind.CLIENT):
            input.headers = self._tracing.headers(input.headers)
            await super().signal_workflow(input)

    async def start_workflow_update(self, input: client.StartWorkflowUpdateInput) -> client.WorkflowUpdateHandle[Any]:
        with self._tracing.span(f"send {input.update}", {"refold.task_id": input.id}, kind=SpanKind.CLIENT):
            input.headers = self._tracing.headers(input.headers)
            return await super().start_workflow_update(input)


class _Effect:
    """The span of an effect; see `refold.effects.tracing.Traced`."""

    def __init__(self, span: Span, tracing: Tracing) -> None:
        self._span, self._tracing = span, tracing
        self.content = tracing.content

    @property
    def instrument(self) -> Any:
        return self._tracing.instrument

    def note(self, name: str, value: str | int | float | bool) -> None:
        self._span.set_attribute(name, value)


class _Activity(worker.ActivityInboundInterceptor):
    """A span for each attempt of an effect whose task is traced."""

    def __init__(self, next: worker.ActivityInboundInterceptor, tracing: Tracing) -> None:
        super().__init__(next)
        self._tracing = tracing

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        context, info = self._tracing.context(input.headers), activity.info()
        if context is None or info.activity_type == STRETCH:  # each of its effects has a span of its own
            return await super().execute_activity(input)
        name, about = _about(info)
        with self._tracing.span(name, about, context=context) as span:
            token = TRACED.set(_Effect(span, self._tracing))
            try:
                return await super().execute_activity(input)
            finally:
                TRACED.reset(token)


def _about(info: activity.Info) -> tuple[str, dict[str, str | int | bool]]:
    """The name and the attributes of an attempt."""
    kind, _, name = info.activity_type.partition(".")
    told: dict[str, str | int | bool] = {
        "refold.task_id": info.workflow_id or "",
        "refold.skill": info.workflow_type or "",
        "refold.invocation_id": info.activity_id,
        "refold.attempt": info.attempt,
        "refold.resumed": info.attempt > 1,  # Temporal attempts an effect again only after a lost worker
    }
    entry = place(info.activity_id).partition(".")[0]
    if entry.isdigit():
        told["refold.entry"] = int(entry)
    if kind == "tool":
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
        return f"execute_tool {name}", {**tool, **told}
    return f"effect {name}" if kind == "refold" else f"activity {info.activity_type}", told


class _Workflow(worker.WorkflowInboundInterceptor):
    """Hands the trace on, and tells of what is sent to the task. Runs in workflow code: the spans are made outside."""

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_HandedOn(outbound))

    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:
        if workflow.info().continued_run_id:
            tell("task goes on in a new run", {"refold.run_id": workflow.info().run_id})
        return await super().execute_workflow(input)

    async def handle_signal(self, input: worker.HandleSignalInput) -> None:
        if sender := input.headers.get(HEADER):
            tell(f"task receives {input.signal}", {}, sender)
        await super().handle_signal(input)

    async def handle_update_handler(self, input: worker.HandleUpdateInput) -> Any:
        if sender := input.headers.get(HEADER):
            tell(f"task receives {input.update}", {}, sender)
        return await super().handle_update_handler(input)


class _HandedOn(worker.WorkflowOutboundInterceptor):
    """Hands the trace on to effects, parts and new runs: each gets the header of the task's own start."""

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = _with(input.headers)
        return super().start_activity(input)

    def start_local_activity(self, input: worker.StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = _with(input.headers)
        return super().start_local_activity(input)

    async def start_child_workflow(
        self, input: worker.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        below = tell(f"task starts {input.workflow}", {"refold.part": input.id})
        input.headers = _with(input.headers, below)
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: worker.ContinueAsNewInput) -> NoReturn:
        input.headers = _with(input.headers)
        super().continue_as_new(input)


def _with(headers: Mapping[str, Payload], below: Payload | None = None) -> Mapping[str, Payload]:
    header = below or workflow.info().headers.get(HEADER)
    return headers if header is None else {**headers, HEADER: header}


# --- where spans go


class _Lost:
    """Logs that spans are lost: of the first ones, and again after some were delivered."""

    def __init__(self, **place: str) -> None:
        self._place = place
        self._failing = False

    def note(self, error: str | None) -> SpanExportResult:
        """The result of an export; `error` is None if it was one."""
        if error is not None and not self._failing:
            log.warning("traces_lost", **self._place, error=error)
        self._failing = error is not None
        return SpanExportResult.FAILURE if self._failing else SpanExportResult.SUCCESS


class TracesCollector(SpanExporter):
    """Sends spans to an OTLP collector. Spans that it does not take are dropped, which the log says once.

    The exporter says why in its own log alone, a line for each attempt.
    """

    def __init__(self, exporter: SpanExporter, said: logging.Logger, place: str) -> None:
        self._exporter, self._lost = exporter, _Lost(collector=place)
        self._why = _Why()
        said.addHandler(self._why)
        said.propagate = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See the SDK."""
        self._why.text = ""
        taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        return self._lost.note(None if taken else self._why.text or "not taken")

    def shutdown(self) -> None:
        """See the SDK."""
        self._exporter.shutdown()


class _Why(logging.Handler):
    """Keeps the exporter's reason: the first line of an export, since the last may only say that it gave up."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


class TracesFile(SpanExporter):
    """Appends each span to a file, as one line of JSON. Any number of processes may share the file.

    A span that cannot be written (a full disk) is dropped. The log says so of the first one, and again after one that
    was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost = _Lost(file=str(path))
        self._begin = b""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See the SDK."""
        lines = self._begin + "".join(span.to_json(indent=None) + "\n" for span in spans).encode()
        try:
            file = _appending(self._path)
            try:
                written = os.write(file, lines)  # in one piece: lines of two processes do not mix
            finally:
                os.close(file)
            if written < len(lines):
                self._begin = b"\n"  # the next span is not to stand behind a part of this one
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            return self._lost.note(error.strerror)
        self._begin = b""
        return self._lost.note(None)


def _appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)  # spans may have what people wrote


def provider_of(named: str) -> TracerProvider:
    """The provider that a setting names: `otlp`, or a file.

    Raises:
        DefinitionError: OTLP's exporter is not installed, the file cannot be written, or an address is named.
    """
    if "://" in named:
        problem = f"{named} is an address: set {ENV}={OTLP}, and OTEL_EXPORTER_OTLP_ENDPOINT to the collector's address"
        raise DefinitionError(ENV, [problem], what="traces")
    provider = TracerProvider(resource=Resource.create({"service.name": "refold"}))
    if named.lower() == OTLP:
        try:
            otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        except ModuleNotFoundError:
            problem = "its exporter is missing: pip install opentelemetry-exporter-otlp-proto-http"
            raise DefinitionError(ENV, [problem], what="traces") from None
        place = next((place for name in ENDPOINTS if (place := os.environ.get(name))), "http://localhost:4318")
        exporter = TracesCollector(otlp.OTLPSpanExporter(), logging.getLogger(otlp.__name__), place)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return provider
    path = Path(named)
    try:
        os.close(_appending(path))
    except OSError as error:
        problem = f"the file {named} cannot be written: {error.strerror}; name a file, or {OTLP!r}"
        raise DefinitionError(ENV, [problem], what="traces") from None
    provider.add_span_processor(SimpleSpanProcessor(TracesFile(path)))  # at once: a worker may be killed
    return provider


@cache
def tracing_from_env() -> Tracing | None:
    """What `REFOLD_TRACES` says; None if it is unset.

    Raises:
        DefinitionError: See `provider_of`.
    """
    named = os.environ.get(ENV, "").strip()
    if not named:
        return None
    content = os.environ.get(CONTENT_ENV, "").strip().lower() in ("1", "true", "yes")
    return Tracing(provider_of(named), content=content)


def flush() -> None:
    """Send what is not sent yet, before the process ends; waits for `FLUSH_S` at most."""
    if tracing_from_env.cache_info().currsize and (tracing := tracing_from_env()) is not None:
        sending = threading.Thread(target=tracing.provider.force_flush, daemon=True)
        sending.start()
        sending.join(FLUSH_S)
