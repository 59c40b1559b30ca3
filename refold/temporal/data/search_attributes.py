"""The search attributes of tasks: their names and types, and the values at a task's start."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from refold.core.lifecycle import Status, TaskState

STATE = SearchAttributeKey.for_keyword("RefoldState")
STATUS = SearchAttributeKey.for_keyword("RefoldStatus")
STATUS_AT = SearchAttributeKey.for_datetime("RefoldStatusAt")
STATE_AT = SearchAttributeKey.for_datetime("RefoldStateAt")
SKILL = SearchAttributeKey.for_keyword("RefoldSkill")
OWNER = SearchAttributeKey.for_keyword("RefoldOwner")
CONTEXT = SearchAttributeKey.for_keyword("RefoldContext")
ORIGIN = SearchAttributeKey.for_keyword("RefoldOrigin")

KINDS: Mapping[str, str] = MappingProxyType(
    {
        key.name: "Datetime" if key in (STATUS_AT, STATE_AT) else "Keyword"
        for key in (STATE, STATE_AT, STATUS, STATUS_AT, SKILL, OWNER, CONTEXT, ORIGIN)
    }
)
"""Search attributes by name, with their types. A server accepts only registered ones."""

REGISTER = "; ".join(
    f"temporal operator search-attribute create --name {name} --type {kind}" for name, kind in KINDS.items()
) + (
    "; on Temporal Cloud: tcld namespace search-attributes add --namespace NAMESPACE "
    + " ".join(f"--search-attribute {name}={kind}" for name, kind in KINDS.items())
)
"""The commands that register the search attributes; each call of `create` takes only one."""


KEY_ENV = "REFOLD_SEARCH_KEY"
DEFAULT_KEY = "refold"


def keyed(attribute: str, value: str) -> str:
    """The search attribute's value for an owner or a context: a keyed hash, as 64 hex digits.

    With the key one can check a guess, but not read the text. Lone surrogates are allowed.
    """
    key = os.environ.get(KEY_ENV) or DEFAULT_KEY
    text = f"{attribute}:{value}".encode(errors="surrogatepass")
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest()


_PLAIN = re.compile(r"[ !#-\[\]-~]{1,200}")


def state_since(task: TypedSearchAttributes) -> datetime | None:
    """When a task came to its state; None where the server does not know.

    A change of state mostly comes with one of the status; after the start, `STATE_AT` is written only where it does
    not, which saves each pause of each task a hundred bytes of history.
    """
    return max((at for at in (task.get(STATUS_AT), task.get(STATE_AT)) if at is not None), default=None)


def origin_value(task_id: str) -> str:
    """How the index holds the task that another one was recovered or forked from: its id, or a hash of an odd id.

    The server finds no text with `"`, a backslash or a control character, and some databases hold 255 characters.
    """
    return task_id if _PLAIN.fullmatch(task_id) else hashlib.sha256(task_id.encode(errors="surrogatepass")).hexdigest()


def at_start(skill: str, now: datetime, *, origin: str | None = None, later: bool = False) -> TypedSearchAttributes:
    """The search attributes at a task's start; a new task counts as running.

    Args:
        skill: The skill's id.
        now: The time of the start.
        origin: The id of the task that this one was recovered or forked from; None otherwise.
        later: The task is held or delayed: it counts as planned until it begins.
    """
    state, status = (TaskState.PLANNED, Status.SUBMITTED) if later else (TaskState.RUNNING, Status.WORKING)
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(SKILL, skill),
        SearchAttributePair(STATE, state.value),
        SearchAttributePair(STATUS, status.value),
        SearchAttributePair(STATUS_AT, now),
        SearchAttributePair(STATE_AT, now),
    ]
    if origin is not None:
        pairs.append(SearchAttributePair(ORIGIN, origin_value(origin)))
    return TypedSearchAttributes(pairs)


def quoted(value: str) -> str:
    """A text as a literal of the server's filter language."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
