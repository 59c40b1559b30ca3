"""The activity that makes the address of a callback: `ctx.callback` and `Cmd.callback`."""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio import activity
from temporalio.exceptions import ApplicationError

from refold.callbacks.address import missing, settings
from refold.core.commands import CALLBACK, Callback
from refold.core.errors import DefinitionError


@activity.defn(name=CALLBACK)
async def make_address(until: datetime) -> Callback:
    """An address for the task that asks for it; the same in each attempt."""
    info = activity.info()
    try:
        known = settings()
    except DefinitionError as error:
        raise ApplicationError(str(error), type=CALLBACK, non_retryable=True) from None
    why = missing(known)
    if not why and (until.tzinfo is None or until <= datetime.now(UTC)):
        why = f"an address expires at a time to come, and {until.isoformat()} is none"
    if why:
        raise ApplicationError(why, type=CALLBACK, non_retryable=True)
    return known.make(info.workflow_id or "", info.activity_id, until)
