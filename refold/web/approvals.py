"""`POST /approval-callback`: a chat bot, a form or another service sends a person's decision.

Source: S3.38 to S3.40.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from refold.core.errors import InputRejected
from refold.core.gates import is_among
from refold.core.schema import fields_of, problems
from refold.engine import Decision, Engine, EngineError, PayloadTooLarge, Taken, TaskNotFound, TaskView, WaitView
from refold.engine.arguments import defining, takes
from refold.engine.refusals import checked
from refold.words.as_json import json_value

BODY_LIMIT_BYTES = 64 * 1024
SAY_WHO = "say who calls: Authorization: Bearer KEY"

Authenticate = Callable[[Request], str | None]
"""The caller's name; None for an unknown caller."""

MaySee = Callable[[str, str], Awaitable[bool]]
"""Whether a caller may see a task, by its id."""


class ApprovalBody(BaseModel):
    """The request's body.

    Attributes:
        task_id: The task.
        gate: The gate's id or name; None if only one is open.
        digest: The digest of what the approver was shown; a stale one is refused.
        decision: Approved or denied.
        approver: Who decided; None is the caller.
        comment: Why.
        timestamp: When the approver decided, according to the caller; stored as data.
        changes: Edits of fields that the gate declares editable.
    """

    model_config = ConfigDict(extra="forbid")

    task_id: str
    gate: str | None = None
    digest: str | None = None
    decision: Literal["approved", "denied"]
    approver: str | None = None
    comment: str = ""
    timestamp: datetime | None = None
    changes: dict[str, JsonValue] = {}


_unfit_keys = defining("bearer_keys", "authentication")


@takes(_unfit_keys)
def bearer_keys(keys: Mapping[str, str]) -> Authenticate:
    """Authenticate callers by `Authorization: Bearer KEY`.

    Args:
        keys: Caller by key.

    Raises:
        DefinitionError: A key or a caller is no text, or an empty one: an empty key lets in whoever sends none.
    """
    if not all(isinstance(one, str) and one for pair in keys.items() for one in pair):
        raise _unfit_keys("each key and each caller is a text of one character or more; give {KEY: CALLER}")

    def authenticate(request: Request) -> str | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        found = None
        for key, caller in keys.items():  # all are compared, so that the response time reveals nothing
            if hmac.compare_digest(key.encode(), given.encode()):
                found = caller
        return found if scheme.lower() == "bearer" else None

    return authenticate


async def _sees_all(caller: str, task_id: str) -> bool:
    return True


@takes(defining("approval_app", "application"))
def approval_app(
    engine: Engine,
    authenticate: Authenticate,
    *,
    may_vouch: Collection[str] = (),
    may_see: MaySee = _sees_all,
    unknown: str = SAY_WHO,
) -> Starlette:
    """The application, with its one route.

    Answers 200 with the task, or with its id and a note for a caller who may not see it any more; 202 with its id, and
    a note, if the task has taken the decision and the server then does not say how it stands; 401 for an unknown
    caller; 403 for one who names another approver without being allowed to, or may not decide at this gate; 404 for a
    task that does not exist; 409 if the task refuses the decision: the gate is not open, or shows something else, the
    approver has granted already, or `REFOLD_APPROVAL_KEY` is missing or another than the workers have; 413 and 422 for
    a body that does not fit; 503 if no worker, server or storage answers.

    Args:
        engine: Runs the tasks. It signs each decision, for which it needs `REFOLD_APPROVAL_KEY`.
        authenticate: Returns the caller.
        may_vouch: Callers that may name the approver; any other caller decides in its own name.
        may_see: Whether a caller may see a task; to one that may not, the task does not exist.
        unknown: What an unknown caller is answered.

    Raises:
        DefinitionError: An argument is of another type.
    """

    async def callback(request: Request) -> JSONResponse:
        caller = authenticate(request)
        if caller is None:
            return _answer(401, unknown)
        body = await request.body()
        if len(body) > BODY_LIMIT_BYTES:
            return _answer(413, f"a decision takes at most {BODY_LIMIT_BYTES} bytes")
        try:
            said = ApprovalBody.model_validate(json_value(body))
        except ValidationError as error:
            return _answer(422, f"{problems(error)}; a decision has {', '.join(fields_of(ApprovalBody))}")
        except ValueError as error:
            return _answer(422, f"the body cannot be read: {error}")
        approver = said.approver or caller
        if approver != caller and caller not in may_vouch:
            return _answer(403, f"{caller} may not decide in the name of {approver}")
        try:
            if not await may_see(caller, said.task_id):
                raise TaskNotFound(said.task_id)
            return await _decide(engine, said, approver, caller, may_see)
        except TaskNotFound as error:
            return _answer(404, str(error))
        except InputRejected as error:
            return _answer(409, str(error))
        except Taken as error:
            return JSONResponse({"task_id": said.task_id, "note": str(error)}, status_code=202)
        except PayloadTooLarge as error:
            return _answer(413, str(error))
        except EngineError as error:
            return _answer(503, str(error))

    return Starlette(routes=[Route("/approval-callback", callback, methods=["POST"])])


async def _shown(view: TaskView, caller: str, may_see: MaySee) -> JSONResponse:
    """The task after the decision; of one that the caller may not see any more, that it has taken the decision."""
    with suppress(EngineError):  # it was taken, whatever comes now
        if await may_see(caller, view.task_id):
            return JSONResponse(view.model_dump(mode="json"))
    return JSONResponse({"task_id": view.task_id, "note": "the task has taken the decision, and goes on"})


async def _decide(engine: Engine, said: ApprovalBody, approver: str, caller: str, may_see: MaySee) -> JSONResponse:
    wait = _gate(await engine.look(said.task_id), said.gate)
    if wait is not None and (why := _bars(wait, approver)):
        return _answer(403, f"{approver} may not decide at gate {wait.slot!r}: {why}")
    made = checked(
        Decision,
        gate=said.gate,
        approved=said.decision == "approved",
        digest=said.digest,
        comment=said.comment,
        changes=said.changes,
        said_at=said.timestamp,
    )
    view = await engine.decide_together(said.task_id, [made], approver=approver, vouched_by=caller)
    return await _shown(view, caller, may_see)


def _bars(wait: WaitView, approver: str) -> str:
    """Why the gate takes no decision of this person; empty if it may take one."""
    if wait.approvers and not is_among(approver, wait.approvers):
        return f"those who may: {', '.join(wait.approvers)}"
    if is_among(approver, wait.excluded):
        return f"a second person decides, not {approver}, who owns or started the task"
    return ""


def _gate(view: TaskView, named: str | None) -> WaitView | None:
    gates = [wait for wait in view.waiting_for if wait.gate_kind is not None]
    met = [wait for wait in gates if named in (None, wait.gate, wait.slot)]
    return met[0] if len(met) == 1 else None


def _answer(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)
