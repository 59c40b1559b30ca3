"""Calls of 0.3 that the SDK cannot convert to those of 1.0, or that say another version: the caller's mistakes.

The SDK would answer them with an internal error, and with the text of the exception.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from a2a.compat.v0_3 import a2a_v0_3_pb2, conversions
from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.compat.v0_3.proto_utils import FromProto
from a2a.compat.v0_3.types import GetTaskRequest, SendMessageRequest
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError, InvalidParamsError, VersionNotSupportedError
from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import Error as ProtoError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from refold.a2a.calls import major_version
from refold.a2a.security.http_errors import is_rpc

Convert = Callable[[Any], object]

_CONVERTED: Mapping[str, Convert] = {
    "message/send": lambda body: conversions.to_core_send_message_request(SendMessageRequest.model_validate(body)),
    "message/stream": lambda body: conversions.to_core_send_message_request(
        SendMessageRequest.model_validate({**body, "method": "message/send"})
    ),
    "tasks/get": lambda body: conversions.to_core_get_task_request(GetTaskRequest.model_validate(body)),
}
"""The methods whose parameters may fit 0.3 and not 1.0."""

_SENDS = re.compile(r"(/[^/]+)?/v1/message:(send|stream)")
_GETS = re.compile(r"(/[^/]+)?/v1/tasks/.+")
_NUMBER = re.compile(r"-?[0-9]{1,9}", re.ASCII)


def checked(routes: Iterable[BaseRoute], *, serves_0_3: bool) -> list[BaseRoute]:
    """The same routes, behind the check, if 0.3 is served."""
    return [
        Route(route.path, _checked(route.endpoint), methods=list(route.methods or ()))
        if serves_0_3 and isinstance(route, Route)
        else route
        for route in routes
    ]


def _checked(
    serve: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def served(request: Request) -> Response:
        check = _check_rpc if is_rpc(request.scope) else _check_rest
        return await check(request) or await serve(request)

    return served


async def _check_rpc(request: Request) -> Response | None:
    """The refusal of a call over JSON-RPC; None if it can be converted, or if the SDK says what is wrong with it."""
    try:
        body = await request.json()
    except ValueError:
        return None
    method = body.get("method") if isinstance(body, dict) else None
    if isinstance(method, str) and (other := _of_other_version(request, method)):
        id = body.get("id")
        return JSONResponse(build_error_response(id if isinstance(id, str | int) else None, other))
    convert = _CONVERTED.get(method) if isinstance(method, str) else None
    problem = "" if convert is None else _problem(convert, body)
    if not problem:
        return None
    told = {"code": JSON_RPC_ERROR_CODE_MAP[InvalidParamsError], "message": problem}
    return JSONResponse({"jsonrpc": "2.0", "id": body.get("id"), "error": told})


def _of_other_version(request: Request, method: str) -> VersionNotSupportedError | None:
    """The refusal of a method that the version of the call does not have; None of one that it may have."""
    version = request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER) or ""
    of_0_3 = not version or major_version(version) == "0"
    if not of_0_3 and method in JSONRPC03Adapter.METHOD_TO_MODEL:
        return VersionNotSupportedError(
            f"{method!r} is a method of A2A 0.3; leave A2A-Version out, or call that of 1.0"
        )
    if of_0_3 and method in JsonRpcDispatcher.METHOD_TO_MODEL:
        return VersionNotSupportedError(f"{method!r} is a method of A2A 1.0; send the header A2A-Version: 1.0")
    return None


async def _check_rest(request: Request) -> Response | None:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    length = request.query_params.get("historyLength")
    problem = ""
    if request.method == "POST" and _SENDS.fullmatch(path):
        problem = _problem(_convert_rest, await request.body())
    elif length and _GETS.fullmatch(path) and not _NUMBER.fullmatch(length):
        problem = f"historyLength is a number, not {length[:20]!r}"
    if not problem:
        return None
    told = build_rest_error_payload(InvalidParamsError(problem))
    return JSONResponse(told, told["error"]["code"])


def _convert_rest(body: bytes) -> None:
    message = a2a_v0_3_pb2.SendMessageRequest()
    try:
        Parse(body, message, ignore_unknown_fields=True)
    except ParseError:
        return  # the SDK says what is wrong with it
    params = FromProto.message_send_params(message)
    conversions.to_core_send_message_request(SendMessageRequest(id="", params=params))


def _problem(convert: Convert, body: Any) -> str:
    """Why parameters cannot be converted; empty if they can, or if they do not even fit 0.3, which the SDK says."""
    try:
        convert(body)
    except (ValidationError, A2AError):
        return ""
    except (ParseError, ProtoError, OverflowError, TypeError, ValueError) as error:
        return f"the parameters do not fit: {str(error)[:200]}"
    return ""
