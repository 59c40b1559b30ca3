"""The idempotency key on the wire."""

from __future__ import annotations

from functools import partial

from refold.effects.http.keys import after_undoing, key_of_call, nth, wire_key


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


def test_a_business_key_is_what_a_call_is_recognised_by() -> None:
    """
    Else its invocation id, which no two tasks share.
    """
    own = partial(key_of_call, "default", "pay", owner=None)

    assert own("refund:A1", "T/3.1") == own("refund:A1", "U/7.1")
    assert own("refund:A1", "T/3.1") == wire_key(namespace="default", tool="pay", key="refund:A1")
    assert own(None, "T/3.1~2") == wire_key(namespace="default", tool="pay", key="T/3.1~2")


def test_a_business_key_is_its_owners() -> None:
    """
    Equal keys of two owners differ; a key for all is the one of tasks without an owner.
    """
    key = partial(key_of_call, "default", "pay", "refund:A1", "T/3.1")
    ada, bob, nobody = (key(owner=owner) for owner in ("ada", "bob", None))

    assert len({ada, bob, nobody}) == 3
    assert {key(owner=owner, scope="all") for owner in ("ada", "bob", None)} == {nobody}


def test_no_key_can_be_made_up_that_is_another_owners() -> None:
    """
    Whatever a model puts into a key, it stays a key of the task's owner.
    """
    made_up = ['["ada","refund:A1"]', 'ada","refund:A1', "refund:A1"]
    keys = {key_of_call("default", "pay", key, "T/3.1", owner="bob") for key in made_up}
    keys |= {key_of_call("default", "pay", key, "T/3.1", owner=None) for key in made_up}

    assert key_of_call("default", "pay", "refund:A1", "T/3.1", owner="ada") not in keys


def test_what_was_undone_is_made_anew() -> None:
    """
    To the receiver the effect that was undone is done, so that the one in its place has another key.
    """
    keys = {after_undoing("k", times) for times in range(4)}

    assert after_undoing("k", 0) == "k"
    assert len(keys) == 4
