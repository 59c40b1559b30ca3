"""A task's news for as long as somebody waits for them, over the loss of its worker and restarts of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from refold.core.fold.journal import Entry
from refold.engine import Engine, News, NotConnected, NoWorker
from refold.record import TaskRecord

AGAIN_S = 0.5
"""Seconds before a task is asked for again whose worker or server did not answer."""

OUTAGE_S = 60.0
"""Seconds for which a caller waits while the server does not answer; then it gets an error."""

WORKER_S = 10.0
"""Seconds for which a call waits for a task's worker before it goes on. After that, a caller who reconnects or sends an
answer again gets an error and may try again, and a stream that has just sent a question ends."""

logger = logging.getLogger("refold.a2a")


async def watched(engine: Engine, task_id: str, *, after: int, follow: bool) -> AsyncGenerator[News, None]:
    """See `Engine.watch`.

    Raises:
        NotConnected: The server did not answer for `OUTAGE_S`.
    """
    clock = asyncio.get_running_loop().time
    away_since: float | None = None
    while True:
        try:
            async with aclosing(engine.watch(task_id, after=after, follow=follow)) as items:
                async for item in items:
                    away_since = None
                    if isinstance(item, Entry):
                        after = item.seq
                    yield item
            return
        except NoWorker as error:
            # The task waits for a worker, so the caller waits too.
            logger.info("task %s: %s", task_id, error)
        except NotConnected as error:
            logger.warning("task %s: %s", task_id, error)
            away_since = away_since or clock()
            if clock() - away_since > OUTAGE_S:
                raise
        await asyncio.sleep(AGAIN_S)


async def read(engine: Engine, task_id: str) -> TaskRecord:
    """See `Engine.record`.

    Raises:
        NotConnected: The server did not answer for `OUTAGE_S`.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + OUTAGE_S
    while True:
        try:
            return await engine.record(task_id)
        except NotConnected as error:
            logger.warning("task %s: %s", task_id, error)
            if clock() > until:
                raise
        await asyncio.sleep(AGAIN_S)


async def answered(engine: Engine, record: TaskRecord) -> TaskRecord:
    """The task as its worker knows it: a record without a worker may lack events that the caller has seen or caused.

    Raises:
        NoWorker: No worker answered for `WORKER_S`.
        NotConnected: The server did not answer for `OUTAGE_S`.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + WORKER_S
    while record.note and not record.ended:
        if clock() > until:
            raise NoWorker(record.note)
        await asyncio.sleep(AGAIN_S)
        record = await read(engine, record.task_id)
    return record
