"""ASGI middleware that makes a request part of its caller's trace, or begins one."""

from __future__ import annotations

from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Receive, Scope, Send

from refold.web.callbacks import without_token

_PROPAGATOR = TraceContextTextMapPropagator()
_HEADERS = (b"traceparent", b"tracestate")


class TracedRequests:
    """A span for each POST, below the caller's own if the request has the header `traceparent`.

    A task that the request starts is in that trace. The span has the method, and the path without a callback's token;
    nothing of the body.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        known = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS
        }
        path = without_token(scope["path"])
        about = {"http.request.method": "POST", "url.path": path}
        with self._tracer.start_as_current_span(
            f"POST {path}",
            _PROPAGATOR.extract(known),
            SpanKind.SERVER,
            about,
            record_exception=False,  # an exception's text may quote the body
            set_status_on_exception=False,
        ) as span:
            try:
                await self._app(scope, receive, send)
            except Exception:
                span.set_status(Status(StatusCode.ERROR))
                raise
