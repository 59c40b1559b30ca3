"""The idempotency key on the wire."""

from __future__ import annotations

from refold.effects.keys import nth, wire_key


def test_a_key_is_a_hash() -> None:
    """
    64 hex digits, always the same, that tell nothing about the task.
    """
    key = wire_key(namespace="default", tool="charge", key="task-1/3.1")

    assert key == wire_key(namespace="default", tool="charge", key="task-1/3.1")
    assert len(key) == 64
    assert int(key, 16)
    assert nth(key, 1) == key
    assert nth(key, 2) == f"{key}.2"


def test_parts_do_not_run_into_each_other() -> None:
    """
    Moving a character from one part to the next gives another key.
    """
    keys = {
        wire_key(namespace="a", tool="bc", key="d"),
        wire_key(namespace="ab", tool="c", key="d"),
        wire_key(namespace="a", tool="b", key="cd"),
        wire_key(namespace="a", tool="bc", key="d", owner="e"),
        wire_key(namespace='a","b', tool="c", key="d"),
    }

    assert len(keys) == 5
