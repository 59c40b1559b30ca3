"""Addresses of callbacks for tests: made as a worker makes them, with a key of the tests."""

from __future__ import annotations

from datetime import datetime

from refold.callbacks.address import CallbackSettings
from refold.core.commands import CALLBACK, CallActivity, Callback, Command
from refold.core.retry_policy import Failure
from refold.testing.answers import permanent

SETTINGS = CallbackSettings(url="http://127.0.0.1:9000", keys=("the key of refold.testing",))
"""With it, a gateway of a test reads the addresses that a `FakeEngine` makes:
`a2a_app(engine, skills, callbacks=SETTINGS, now=lambda: engine.clock.now)`."""


def is_callback(command: Command) -> bool:
    """Whether a command makes an address."""
    return isinstance(command, CallActivity) and command.name == CALLBACK


def made(command: Command, task_id: str, invocation_id: str, now: datetime) -> Callback | Failure:
    """The result of a command that makes an address; a failure where a worker makes none."""
    assert isinstance(command, CallActivity)
    until = datetime.fromisoformat(str(command.args[0]))
    if until.tzinfo is None or until <= now:
        return permanent(f"an address expires at a time to come, and {until.isoformat()} is none", type=CALLBACK)
    return SETTINGS.make(task_id, invocation_id, until)
