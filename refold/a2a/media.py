"""Request and response bodies are JSON: other types are refused, except at the addresses of callbacks, and every error
is a JSON object."""

from __future__ import annotations

from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, MethodNotFoundError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from refold.a2a.security.http_errors import is_rpc
from refold.callbacks.address import PATH as CALLBACKS


class JsonOnly:
    """Middleware that answers 415 if a request's body is not JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        kind = Headers(scope=scope).get("content-type") if scope["type"] == "http" else None
        if scope["type"] != "http" or scope["method"] != "POST" or kind is None or _is_json(kind) or _takes_text(scope):
            await self.app(scope, receive, send)
            return
        wrong = ContentTypeNotSupportedError(f"a request's body is JSON, not {kind}")
        call = await _id_in(receive) if is_rpc(scope) else None
        await _told(wrong, 415, scope, call)(scope, receive, send)


async def told_as_json(request: Request, error: Exception) -> JSONResponse:
    """The error for an unknown path or a wrong HTTP method."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    return _told(MethodNotFoundError(f"there is no {request.method} {request.url.path}"), status, request.scope)


async def _id_in(receive: Receive) -> str | int | None:
    """The id of a JSON-RPC call whose body is JSON all the same."""
    try:
        call = from_json((await receive()).get("body", b""))
    except ValueError:
        return None
    id = call.get("id") if isinstance(call, dict) else None
    return id if isinstance(id, str | int) and not isinstance(id, bool) else None


def _told(error: A2AError, status: int, scope: Scope, call: str | int | None = None) -> JSONResponse:
    if is_rpc(scope):
        return JSONResponse(build_error_response(call, error), status_code=status)
    told = build_rest_error_payload(error)
    told["error"]["code"] = status
    return JSONResponse(told, status_code=status)


def _takes_text(scope: Scope) -> bool:
    """Whether the path says itself what it takes: a callback's address takes text, too."""
    return bool(scope["path"].removeprefix(scope.get("root_path", "")).startswith(f"{CALLBACKS}/"))


def _is_json(kind: str) -> bool:
    media_type = kind.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
