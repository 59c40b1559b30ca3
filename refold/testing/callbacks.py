"""Addresses of callbacks for tests: made as a worker makes them, with a key of the tests."""

from __future__ import annotations

from datetime import datetime

from refold.callbacks.address import Settings
from refold.core.commands import CALLBACK, CallActivity, Callback, Command

SETTINGS = Settings(url="http://127.0.0.1:9000", keys=("the key of refold.testing",))
"""With it, a gateway of a test reads the addresses that a `FakeEngine` makes: `a2a_app(…, callbacks=SETTINGS)`."""


def is_callback(command: Command) -> bool:
    """Whether a command makes an address."""
    return isinstance(command, CallActivity) and command.name == CALLBACK


def made(command: Command, task_id: str, invocation_id: str) -> Callback:
    """The result of a command that makes an address."""
    assert isinstance(command, CallActivity)
    (until,) = command.args
    return SETTINGS.make(task_id, invocation_id, datetime.fromisoformat(str(until)))
