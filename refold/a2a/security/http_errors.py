"""The HTTP errors that refuse a request before it reaches A2A's methods."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

# Source: google.rpc.Code, which A2A's errors over REST use too.
_WORDS = {
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
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        super().__init__(message)

    def response(self) -> JSONResponse:
        """The response, in the form of A2A's errors over REST."""
        error = {"code": self.status, "status": _WORDS[self.status], "message": self.message}
        return JSONResponse({"error": error}, self.status, self.headers)
