"""Redaction: texts and data are replaced by their kind and size; structure, ids, names of steps and tools, times and
statuses stay.

A field's type decides: a text is replaced unless its field is one of `KEPT`, and all that a field of JSON data holds is
replaced, its keys apart. So a field that is added later is redacted until somebody decides that it is an id. Names of
artifacts are replaced by a short hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from refold.callbacks.address import without_addresses
from refold.core.content import Artifact, Part
from refold.core.events import EVENT
from refold.engine import ArtifactView

M = TypeVar("M", bound=BaseModel)

KEPT = frozenset(
    {
        # which one: ids and hashes
        *("id", "invocation_id", "task_id", "parent", "context", "recovered_from", "known_as", "previous", "scope"),
        *("gate", "slot", "digest", "hash", "result_hash", "delivery_id", "message_id", "session_id", "asked_by"),
        *("cause", "closed", "reported_by", "awaited", "undone", "unraised", "skipped", "part_of", "run_id"),
        # what kind of thing
        *("kind", "role", "type", "status", "lifecycle", "decision", "stop", "how", "key_scope", "gate_kind"),
        *("media_type", "expect", "expects", "fields", "sent_as", "refold", "version", "rule"),
        # names in the code
        *("skill", "name", "tool", "command", "model", "thread", "stage", "takes", "queue", "field"),
        *("from_state", "to_state", "event", "read_set", "write_set", "editable"),
    }
)
"""Fields whose text stays."""


def redacted(value: M) -> M:
    """A value without what people, models and tools said in it."""
    if isinstance(value, Part):
        return cast(M, _part(value))
    changes: dict[str, Any] = {}
    for name, field in type(value).model_fields.items():
        given = getattr(value, name)
        kind = repr(field.annotation)
        if name == "name" and isinstance(value, Artifact | ArtifactView):
            changes[name] = _artifact(given)
            continue
        if "Literal" in kind or name == "expect" or (name in KEPT and not isinstance(given, BaseModel | dict)):
            if type(given) is str:  # the slot of a call to a callback has the address
                changes[name] = without_addresses(given)
            continue
        if name == "approvers":
            changes[name] = _people(given)
            continue
        if name == "again" and given is not None:  # an event as JSON: a task is read from it, as from any other event
            changes[name] = redacted(EVENT.validate_python(given)).model_dump(mode="json")
            continue
        changes[name] = data(given) if "JsonValue" in kind else _typed(given)
    return value.model_copy(update=changes)


def data(value: Any) -> Any:
    """JSON data with its keys, and the kind and size of each value."""
    match value:
        case None:
            return None
        case str():
            return said(value)
        case bool():
            return "[true or false]"
        case int() | float():
            return "[a number]"
        case list() | tuple():
            return type(value)(data(one) for one in value)
        case dict():
            return {name: data(one) for name, one in value.items()}
        case _:
            return f"[{type(value).__name__}]"


def said(text: str) -> str:
    """A text's kind and size; an empty one stays."""
    return f"[text of {len(text):,} characters]" if text else text


def _artifact(name: str) -> str:
    """The name of an artifact, which a model may have chosen: two of one name stay the same one."""
    return f"[artifact {hashlib.sha256(name.encode()).hexdigest()[:8]}]"


def _people(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of people. As many differ as before: a gate that fewer may decide than must grant cannot be read."""
    number = {name: place for place, name in enumerate(dict.fromkeys(names), 1)}
    return tuple(f"[person {number[name]}, {said(name)[1:-1]}]" if name else name for name in names)


def _typed(value: Any) -> Any:
    match value:
        case BaseModel():
            return redacted(value)
        case Enum():
            return value
        case str():
            return said(value)
        case bytes():
            return b""
        case list() | tuple():
            return type(value)(_typed(one) for one in value)
        case Mapping():
            return {name: _typed(one) for name, one in value.items()}
        case _:
            return value


def _part(part: Part) -> Part:
    if part.raw is not None:
        return Part(text=f"[file of {len(part.raw):,} bytes]", media_type=part.media_type)
    return part.model_copy(
        update={
            "text": None if part.text is None else said(part.text) or "[text of 0 characters]",
            "data": data(part.data),
            "url": None if part.url is None else "[address]",
            "filename": None if part.filename is None else "[name of a file]",
        }
    )
