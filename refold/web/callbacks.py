"""`POST /callbacks/TOKEN`: whoever has a callback's address answers the task's question, once.

No caller says who they are: whoever has the address may answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from refold.callbacks.address import PATH, Address, CallbackSettings, Forged
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.fold.refusal import FULL, taken_before
from refold.core.lifecycle import TERMINAL
from refold.engine import Engine, EngineError, PayloadTooLarge, Taken, TaskNotFound, TaskView
from refold.engine.arguments import defining, takes
from refold.words.as_json import json_value

BODY_LIMIT_BYTES = 256 * 1024

MOST_RECOVERIES = 20
"""How many recoveries of a task are looked through for the one that waits for the call."""

AGAIN = {"Retry-After": "5"}

GONE = "this address was answered before, or what waited for it has ended"


def without_token(path: str) -> str:
    """A request's path as logs and traces have it: the address of a callback is a secret."""
    before, callback, _ = path.partition(f"{PATH}/")
    return f"{before}{callback}…" if callback else path


def utc_now() -> datetime:
    """The time by the clock of this machine."""
    return datetime.now(UTC)


@takes(defining("callback_routes", "application"))
def callback_routes(engine: Engine, settings: CallbackSettings, now: Callable[[], datetime] = utc_now) -> list[Route]:
    """The route.

    Answers 200 once the task has taken the call; 400 for a body that is no JSON; 404 for an address that nobody here
    has made; 405 for another method than POST; 409 if it was answered before, or its task has ended; 410 after it has
    expired; 413 for more than 256 KiB; 415 for another type than JSON or plain text; 422 for a body that does not fit
    the question; 503 if no worker or server answers, or the task holds as many early messages as it may, and the caller
    should try again.

    Args:
        engine: Runs the tasks.
        settings: The keys; without any, every address is unknown.
        now: The time.
    """

    async def call(request: Request) -> JSONResponse:
        if request.method != "POST":
            return _said(405, "call this address with POST", {"Allow": "POST"})
        try:
            address = settings.read(request.path_params["token"])
        except Forged:
            return _said(404, "nothing here has this address")
        if now() >= address.until:
            return _said(410, f"this address expired at {address.until:%Y-%m-%d %H:%M:%S} UTC")
        body = await request.body()
        if len(body) > BODY_LIMIT_BYTES:
            return _said(413, f"a callback takes at most {BODY_LIMIT_BYTES} bytes")
        content = _content(body, request.headers.get("content-type", ""))
        if isinstance(content, JSONResponse):
            return content
        return await _answered(engine, address, content)

    return [Route(PATH + "/{token}", call, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])]


def _content(body: bytes, kind: str) -> Content | JSONResponse:
    kind = kind.partition(";")[0].strip().lower()
    try:
        if not body:
            return Content.from_data({})
        if kind == "text/plain":
            return Content.from_text(body.decode())
        if kind == "application/json" or kind.endswith("+json"):
            value = json_value(body)
            if value is None:
                raise ValueError("null is no data; send an object, or no body")
            return Content.from_data(value)
    except ValueError as error:
        return _said(400, f"the body cannot be read: {error}")
    return _said(415, "send JSON (Content-Type: application/json) or text (text/plain)")


async def _answered(engine: Engine, address: Address, content: Content) -> JSONResponse:
    """Send a call to its task, or to the task that goes on for it."""
    task_id, digest = address.task_id, text_hash(address.slot)
    try:
        for _ in range(MOST_RECOVERIES):
            try:
                with suppress(Taken):
                    await engine.send(
                        task_id,
                        content,
                        slot=address.slot,
                        delivery_id=address.delivery_id,
                        sender=CALLBACK,
                        early=True,
                    )
                return JSONResponse({"status": "taken"})
            except InputRejected as error:
                if error.reason == FULL:
                    return _said(503, f"{FULL}; try again", AGAIN)
                if error.reason.startswith(taken_before(address.delivery_id)):
                    break
                view = await engine.look(task_id)
                if any(wait.callback == digest for wait in view.waiting_for):
                    return _said(422, str(error))
            if (follower := await _goes_on_as(engine, view)) is None:
                break
            task_id = follower
    except TaskNotFound:
        return _said(409, GONE)
    except PayloadTooLarge as error:
        return _said(413, str(error))
    except EngineError:
        return _said(503, "the task cannot be reached at the moment; try again", AGAIN)
    return _said(409, GONE)


async def _goes_on_as(engine: Engine, view: TaskView) -> str | None:
    """The task that was recovered from one that has ended; None if none was."""
    if view.lifecycle not in TERMINAL:
        return None
    recovered = [one.task_id for one in await engine.offspring(view.task_id) if one.how == "recovered"]
    return recovered[-1] if recovered else None


def _said(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status, headers=headers)
