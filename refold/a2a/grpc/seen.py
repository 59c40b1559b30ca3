"""What is seen of gRPC calls: a span of each, in its caller's trace, and the gateway's counters, as over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.context import attach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from refold.seen import metrics
from refold.seen.meters import count, observe

_PROPAGATOR = TraceContextTextMapPropagator()
_HEADERS = ("traceparent", "tracestate")
_CALLERS = {
    grpc.StatusCode.ABORTED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.CANCELLED,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
}  # fmt: skip
"""The statuses that stand for 4xx; those that are no success either stand for 5xx."""


class SeenCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Makes a span of each call, below the caller's own if its metadata has `traceparent`, and counts the call.

    A task that the call starts is in that trace. The span has service and method, nothing of the message. Stands before
    `Admitted`, so that refused calls are seen, too.

    Attributes:
        tracer: OpenTelemetry's; None makes no spans.
    """

    tracer: Tracer | None = None

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None:
            return None  # there is no such method
        method, write = details.method, handler.response_serializer
        if not handler.response_streaming:
            served = self._unary(handler.stream_unary, method)
            return grpc.stream_unary_rpc_method_handler(served, response_serializer=write)
        streamed = self._stream(handler.stream_stream, method)
        return grpc.stream_stream_rpc_method_handler(streamed, response_serializer=write)

    def _unary(self, serve: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Awaitable[Any]]:
        async def served(requests: Any, context: grpc.aio.ServicerContext) -> Any:
            with self._seen(method, context):
                return await serve(requests, context)

        return served

    def _stream(self, serve: Callable[..., AsyncIterator[Any]], method: str) -> Callable[..., AsyncIterator[Any]]:
        async def served(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            with self._seen(method, context) as answers:
                async for event in serve(requests, context):
                    answers()
                    yield event

        return served

    @contextmanager
    def _seen(self, method: str, context: grpc.aio.ServicerContext) -> Iterator[Callable[[], None]]:
        """See a call; what is yielded is called as its answer begins, and counts once."""
        came, answered = time.monotonic(), False

        def answers() -> None:
            nonlocal answered
            if not answered:
                answered = True
                count(metrics.CALLS, _class_of(context))
                observe(metrics.CALL_SECONDS, time.monotonic() - came)

        span = None if self.tracer is None else _begun(self.tracer, method, context)
        try:
            yield answers
        finally:
            answers()
            if span is not None:
                _ended(span, context)


def _class_of(context: grpc.aio.ServicerContext) -> str:
    """The class of the HTTP status that stands for the status of a call."""
    code = _code(context)
    return "2xx" if code is grpc.StatusCode.OK else "4xx" if code in _CALLERS else "5xx"


def _code(context: grpc.aio.ServicerContext) -> grpc.StatusCode:
    found = context.code()
    return found if isinstance(found, grpc.StatusCode) else grpc.StatusCode.OK  # none is set before the end


def _begun(tracer: Tracer, method: str, context: grpc.aio.ServicerContext) -> Span:
    """A span that is the current one for the rest of the call, whose task has a context of its own."""
    known = {name: value for name, value in context.invocation_metadata() or () if name in _HEADERS}
    service, _, name = method.strip("/").rpartition("/")
    about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    above = _PROPAGATOR.extract(known)
    span = tracer.start_span(f"{service}/{name}", above, SpanKind.SERVER, about)
    attach(set_span_in_context(span, above))
    return span


def _ended(span: Span, context: grpc.aio.ServicerContext) -> None:
    code = _code(context)
    span.set_attribute("rpc.grpc.status_code", code.value[0])
    if _class_of(context) == "5xx":
        span.set_status(Status(StatusCode.ERROR))
    span.end()
