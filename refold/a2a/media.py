"""Bodies are JSON: what says that it is something else is not read."""

from __future__ import annotations

from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import ContentTypeNotSupportedError
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class JsonOnly:
    """Middleware that answers 415 where a request's body is of another type than JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        kind = Headers(scope=scope).get("content-type") if scope["type"] == "http" else None
        if scope["type"] != "http" or scope["method"] != "POST" or kind is None or _is_json(kind):
            await self.app(scope, receive, send)
            return
        told = build_rest_error_payload(ContentTypeNotSupportedError(f"a request's body is JSON, not {kind}"))
        told["error"]["code"] = 415
        await JSONResponse(told, status_code=415)(scope, receive, send)


def _is_json(kind: str) -> bool:
    media_type = kind.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
