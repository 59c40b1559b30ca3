"""The HTTP errors that refuse a request before it reaches A2A's methods: in JSON-RPC's form or in REST's."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.types import InternalError, InvalidRequestError
from a2a.utils.errors import A2AError
from starlette.responses import JSONResponse
from starlette.types import Scope

from refold.seen.logs import logger

log = logger("refold.a2a")

# Source: google.rpc.Code, which A2A's errors over REST use too.
WORDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    408: "DEADLINE_EXCEEDED",
    413: "INVALID_ARGUMENT",
    421: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class Refused(Exception):
    """The request is refused.

    Attributes:
        status: The HTTP status.
        message: For the caller: what to do about it.
        headers: Of the response.
        error: The error over JSON-RPC; None takes `InvalidRequestError`, or `InternalError` from status 500 on.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        error: A2AError | JSONRPCError | None = None,
    ) -> None:
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        self.error = error or (InternalError if status >= 500 else InvalidRequestError)(message)
        super().__init__(message)

    def response(self, scope: Scope) -> JSONResponse:
        """The response to this request, in the form of A2A's errors over JSON-RPC or over REST."""
        if is_rpc(scope):
            return JSONResponse(build_error_response(None, self.error), self.status, self.headers)
        error = {"code": self.status, "status": WORDS[self.status], "message": self.message}
        return JSONResponse({"error": error}, self.status, self.headers)


def broken(error: Exception, **where: str) -> Refused:
    """Log an error that nobody foresaw, with where it was raised; its number is all that the caller gets."""
    number = secrets.token_hex(6)
    log.error("request_failed", reference=number, exc_info=error, **where)
    return Refused(500, f"internal error; whoever runs the agent finds it in the log as {number}")


def is_rpc(scope: Scope) -> bool:
    """Whether a request is one of JSON-RPC: a POST to the gateway's own address, or to that of a skill."""
    path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
    return scope["method"] == "POST" and (path.endswith("/") or not path)
