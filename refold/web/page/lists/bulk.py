"""The same action for several tasks: it is asked for first, then goes on by itself, and the page tells how as it goes.

The answer is a page that grows: a line for each task as soon as it is done with. The actions belong to the process, not
to the page: they go on if the page is closed. If the process is stopped, the rest of the tasks stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.responses import Response, StreamingResponse

from refold.core.errors import InputRejected
from refold.core.lifecycle import TERMINAL, TaskState
from refold.engine import EngineError, Listed
from refold.seen.logs import logger
from refold.web.page.frame import Call, Refused
from refold.web.page.lists.listing import list_page, wanted_of

log = logger("refold.page")

AT_ONCE = 10
"""How many tasks are changed together."""

MOST = 1_000
"""How many tasks that fit the filters are chosen together at most: those that changed last."""

RUNS = 5
"""How many of these one process does at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What is done with a task.

    Attributes:
        perform: Does it.
        suits: Whether it can be done with a task, as far as the list knows.
    """

    perform: Callable[[Call, str], Awaitable[object]]
    suits: Callable[[Listed], bool]


async def _cancel(call: Call, task_id: str) -> None:
    await call.engine.cancel(task_id, by=call.person.name)


async def _recover(call: Call, task_id: str) -> None:
    await call.engine.recover(task_id, by=call.person.name)


async def _retry(call: Call, task_id: str) -> None:
    await call.engine.resolve(task_id, retry=True, by=call.person.name)


ACTIONS = {
    "cancel": Action(perform=_cancel, suits=lambda one: one.lifecycle not in TERMINAL),
    "recover": Action(perform=_recover, suits=lambda one: one.lifecycle is TaskState.FAILED),
    "retry": Action(perform=_retry, suits=lambda one: one.lifecycle is TaskState.BLOCKED),
}

Told = asyncio.Queue[tuple[str, str] | None]
"""Each task that is done with, and why the action was refused there, if it was; None at the end."""


class Bulk:
    """What is being done with several tasks in this process, and the page for it."""

    def __init__(self) -> None:
        self._runs: set[asyncio.Task[None]] = set()

    async def bulk(self, call: Call) -> Response:
        """`POST /bulk`: asks whether to cancel, recover or retry the chosen tasks; then does it."""
        action = call.form.get("to", "")
        if action not in ACTIONS:
            raise Refused(400, "choose what to do with the tasks; nothing happened")
        more = False
        if call.form.get("all") == "yes":
            chosen, more = await _all_that_fit(call, ACTIONS[action])
            if not chosen:
                raise InputRejected(f"of the tasks that fit the filters, there is none to {action}; nothing happened")
        else:
            chosen = list(dict.fromkeys(call.fields.get("task", [])))
            if not chosen:
                raise InputRejected("no task was chosen, so nothing happened")
        if call.form.get("sure") != "yes":
            return call.page("bulk.html", tasks=chosen, action=action, asks=True, more=more)
        if len(self._runs) >= RUNS:
            raise Refused(503, "too much of this is under way here; wait until some of it is done. Nothing happened")
        told: Told = asyncio.Queue()
        run = asyncio.create_task(_run(call, ACTIONS[action], chosen, told))
        self._runs.add(run)
        run.add_done_callback(self._ended)
        growing = _growing(call, action, len(chosen), told)
        return StreamingResponse(growing, media_type="text/html", headers={"X-Accel-Buffering": "no"})

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        if not run.cancelled() and (error := run.exception()) is not None:
            log.error("bulk_failed", exc_info=error)


async def _all_that_fit(call: Call, action: Action) -> tuple[list[str], bool]:
    """The tasks that fit the filters of the address and that the action suits; and whether there may be more."""
    found = await list_page(call, wanted_of(call), None, MOST)
    return [one.task_id for one in found.tasks if action.suits(one)], bool(found.following)


async def _run(call: Call, action: Action, chosen: Sequence[str], told: Told) -> None:
    waiting = iter(chosen)

    async def one_after_the_other() -> None:
        for task_id in waiting:
            told.put_nowait((task_id, await _refusal(call, action, task_id)))

    try:
        async with asyncio.TaskGroup() as together:
            for _ in range(AT_ONCE):
                together.create_task(one_after_the_other())
    finally:
        told.put_nowait(None)


async def _refusal(call: Call, action: Action, task_id: str) -> str:
    """Why the action was refused for a task; empty if it took place."""
    try:
        await call.own(task_id)
        await action.perform(call, task_id)
    except (EngineError, InputRejected, Refused) as error:
        return str(error)
    return ""


async def _growing(call: Call, action: str, many: int, told: Told) -> AsyncIterator[bytes]:
    page = call.page("bulk.html", action=action, asks=False, many=many)
    head, _, foot = bytes(page.body).partition(b"<!-- grows here -->")
    yield head
    number = went = 0
    while (one := await told.get()) is not None:
        number, went = number + 1, went + (not one[1])
        yield bytes(call.page("bulk_row.html", number=number, many=many, task_id=one[0], why=one[1]).body)
    yield bytes(call.page("bulk_end.html", went=went, many=many, left=many - number).body)
    yield foot
