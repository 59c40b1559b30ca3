"""Request and response bodies are JSON: other types are refused, except at the addresses of callbacks, and every error
is a JSON object. Files in messages are base64."""

from __future__ import annotations

import base64
import re
from typing import Any

from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidParamsError, MethodNotFoundError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from refold.a2a.security.bodies import again
from refold.a2a.security.http_errors import is_rpc
from refold.callbacks.address import PATH as CALLBACKS

_FILES = re.compile(rb'"(raw|bytes|fileWithBytes|file_with_bytes)"')
"""What a body with a file by value has somewhere: A2A's names of it, in 1.0 and in both spellings of 0.3."""

_EITHER = re.compile(r"[A-Za-z0-9+/_\-\s]*+={0,2}\s*")  # possessive: blanks are looked at once, however many they are

_STANDARD = re.compile(r"[A-Za-z0-9+/\r\n]*+={0,2}[\r\n]*")
"""What the SDK's parser of 0.3 takes whole: it skips the other alphabet's `-` and `_`. With blanks it may be a text."""


class WholeBodies:
    """Middleware that refuses a request whose body is not JSON: with 400 over REST (A2A 1.0.1, 5.4), else 415; and a
    message with a file by value that is not base64. What callbacks bring is neither.

    The SDK's parsers would skip whatever is no base64, and take the rest for the file.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST" or _is_callback(scope):
            await self.app(scope, receive, send)
            return
        body, rpc = await _body(receive), is_rpc(scope)
        kind = Headers(scope=scope).get("content-type")
        wrong: A2AError
        if kind is not None and not _is_json(kind):
            wrong, status = ContentTypeNotSupportedError(f"a request's body is JSON, not {kind}"), 415 if rpc else 400
        elif (number := _no_base64(body)) is not None:
            said = f"parts[{number}] has a file that is not base64; encode its bytes, or send its url"
            wrong, status = InvalidParamsError(said), 200 if rpc else 400
        else:
            await self.app(scope, again(body, receive), send)
            return
        await _told(wrong, status, scope, _id_in(body) if rpc else None)(scope, receive, send)


async def told_as_json(request: Request, error: Exception) -> JSONResponse:
    """The error for an unknown path or a wrong HTTP method."""
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (404, None)
    told = _told(MethodNotFoundError(f"there is no {request.method} {request.url.path}"), status, request.scope)
    told.headers.update(headers or {})  # `Allow`
    return told


async def _body(receive: Receive) -> bytes:
    """A request's body, which `Guard` has read, so that it comes whole."""
    body: bytes = (await receive()).get("body", b"")
    return body


def _no_base64(body: bytes) -> int | None:
    """The number of a message's part whose file by value is not base64; None if there is none."""
    if not _FILES.search(body):
        return None
    try:
        call = from_json(body)
    except ValueError:
        return None  # its parser will say so
    match call:
        case {"params": {"message": {"parts": list(parts)}}}:
            pass
        case {"message": {"parts": list(parts)} | {"content": list(parts)}} | {"request": {"content": list(parts)}}:
            pass
        case _:
            return None
    return next((number for number, part in enumerate(parts) if not _is_whole(part)), None)


def _is_whole(part: Any) -> bool:
    """Whether a part has no file by value, or one of which a parser skips nothing."""
    match part:
        case {"raw": str(file)}:
            return _EITHER.fullmatch(file) is not None
        case {"file": {"bytes": str(file)}}:
            return _STANDARD.fullmatch(file) is not None
        case {"file": {"fileWithBytes": str(file)} | {"file_with_bytes": str(file)}}:
            return _EITHER.fullmatch(file) is not None and _is_base64_within(file)
        case _:
            return True


def _is_base64_within(file: str) -> bool:
    """Whether a file is base64 of base64, as the SDK's client of 0.3 sends it over REST."""
    try:
        within = base64.urlsafe_b64decode(f"{file}==")
    except ValueError:
        return False
    return _STANDARD.fullmatch(within.decode("latin-1")) is not None


def _id_in(body: bytes) -> str | int | None:
    """The id of a JSON-RPC call whose body is JSON all the same."""
    try:
        call = from_json(body)
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


def _is_callback(scope: Scope) -> bool:
    """Whether the path is a callback's address, which takes text too, and JSON of any shape."""
    return bool(scope["path"].removeprefix(scope.get("root_path", "")).startswith(f"{CALLBACKS}/"))


def _is_json(kind: str) -> bool:
    media_type = kind.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
