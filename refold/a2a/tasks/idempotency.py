"""`Idempotency-Key`: a message that is sent again gets the answer of the first one."""

from __future__ import annotations

import hashlib
import json
import re

from a2a.server.context import ServerCallContext
from a2a.utils.errors import InvalidParamsError

from refold.core.content import Content, Message
from refold.record import TaskRecord

HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def key_of(context: ServerCallContext) -> str | None:
    """The key of a call; None if it has none.

    Raises:
        InvalidParamsError: The key is malformed.
    """
    headers = context.state.get("headers", {})
    key = headers.get(HEADER) if isinstance(headers, dict) else None
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidParamsError("Idempotency-Key takes 1 to 255 visible ASCII characters")
    return str(key)


def delivery_of(owner: str | None, where: str, key: str) -> str:
    """The delivery id of a send: unique to the caller, the place and the key.

    Args:
        owner: The caller.
        where: The skill of a new task, or the task that is answered.
        key: The caller's key.
    """
    return hashlib.sha256(json.dumps([owner, where, key]).encode()).hexdigest()[:32]


def taken(record: TaskRecord, delivery: str | None, content: Content) -> Message | None:
    """The message of a delivery, which the task has taken; None without a key, or if it has not.

    Args:
        record: The task.
        delivery: The id of the delivery; None without a key.
        content: What is sent. The caller's id of the message may be another one: a client that is retried takes a new
            one for each call.

    Raises:
        InvalidParamsError: The task has taken another content under this key.
    """
    found = next((one for one in record.messages if one.delivery_id == delivery), None) if delivery else None
    if found is not None and found.content != content:
        raise InvalidParamsError(
            "this Idempotency-Key was used before, for another message; repeat that one as it was, or take a new key"
        )
    return found
