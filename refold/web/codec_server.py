"""A codec server: Temporal's web UI and command line send it what they cannot read, and get it in plain text.

Whoever may call it reads everything that was written with its keys, so it has callers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from refold.core.errors import InputRejected
from refold.engine import EngineError


class Codec(Protocol):
    """Encodes and decodes; see `refold.temporal.data.remote`."""

    async def answer(self, operation: str, body: bytes, *, preserve: bool = False) -> bytes:
        """The answer to a request."""


def codec_app(
    codec: Codec,
    operations: Sequence[str],
    away: tuple[type[EngineError], ...],
    middleware: Sequence[Middleware],
) -> Starlette:
    """The server as an ASGI application.

    Answers 200 with the payloads; 400 for a body that holds none; 404 for another operation; 422 for a payload that
    cannot be decrypted, or whose stored value cannot be read; 503 while the codec or the storage is away.

    Args:
        codec: Encodes and decodes.
        operations: What the last part of a path may be; what stands before it, such as a namespace, does not count.
        away: The errors of a codec or a storage that is away.
        middleware: Who may call.
    """

    async def recode(request: Request) -> Response:
        operation = request.path_params["operation"]
        if operation not in operations:
            return _said(404, f"a codec server answers POST /{', /'.join(operations)}")
        preserve = request.query_params.get("preserveStorageRefs") == "true"
        try:
            answer = await codec.answer(operation, await request.body(), preserve=preserve)
        except InputRejected as error:
            return _said(400, str(error))
        except EngineError as error:
            return _said(503 if isinstance(error, away) else 422, str(error))
        return Response(answer, media_type="application/json", headers={"Cache-Control": "no-store"})

    paths = ("/{operation}", "/{before:path}/{operation}")
    routes = [Route(path, recode, methods=["POST"]) for path in paths]
    return Starlette(routes=routes, middleware=middleware)


def _said(status: int, message: str) -> JSONResponse:
    return JSONResponse({"message": message}, status_code=status)
