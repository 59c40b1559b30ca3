"""The idempotency key on the wire, by which a receiver recognises a repeated call."""

from __future__ import annotations

import hashlib
import json

from refold.core.commands import KeyScope

_joined = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # `json.dumps` makes an encoder each time


def wire_key(*, namespace: str, tool: str, key: str, owner: str = "") -> str:
    """The idempotency key that a receiver sees: 64 hex digits that reveal nothing about the task.

    Args:
        namespace: The Temporal namespace.
        tool: The tool's name; `refold.llm` for a model call.
        key: The command's business key, else its invocation id.
        owner: The owner whose key it is; empty if the key is nobody's own.
    """
    # As JSON, no part can run into the next one: ("a", "bc") and ("ab", "c") differ.
    return hashlib.sha256(_joined([namespace, owner, tool, key]).encode()).hexdigest()


def key_at(key: str, model: str) -> str:
    """The idempotency key of a model call at one of its models: the next model is sent another request."""
    return hashlib.sha256(f"{key} {model}".encode()).hexdigest()


def key_of_call(
    namespace: str, tool: str, key: str | None, invocation_id: str, *, scope: KeyScope = "owner", owner: str | None
) -> str:
    """The idempotency key of a tool's call: from its business key, else from its invocation id.

    Args:
        namespace: The Temporal namespace.
        tool: The tool's name.
        key: The business key; None if the call has none.
        invocation_id: The command's id, which no two tasks share.
        scope: Whose tasks share the business key.
        owner: The task's owner.
    """
    if key is None:
        return wire_key(namespace=namespace, tool=tool, key=invocation_id)
    return wire_key(namespace=namespace, tool=tool, key=key, owner=(owner or "") if scope == "owner" else "")


def after_undoing(key: str, times: int) -> str:
    """The key of an effect performed again after `times` compensations; the receiver has completed the former keys."""
    return key if times == 0 else hashlib.sha256(f"{key}~{times}".encode()).hexdigest()


def nth(key: str, request: int) -> str:
    """The key of a call's second and later requests: `{key}.2` and so on; the first one's is the key itself."""
    return key if request == 1 else f"{key}.{request}"
