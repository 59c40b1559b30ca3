"""The log of workers and gateways. A line that cannot be written is dropped, and stops nothing.

Where nobody reads a worker's stderr any more (`refold worker | head`, a terminal that was closed) or the disk is full,
each line raises. In a task's workflow that would fail the workflow task, again and again; in an activity it would fail
an effect that has taken place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog


class Log:
    """structlog's logger of this name, as the application has set it up."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def bind(self, **fields: Any) -> Log:
        """The same log, with these fields in each line."""
        return Log(self._inner.bind(**fields))

    def __getattr__(self, level: str) -> Callable[..., None]:
        write = getattr(self._inner, level)

        def quietly(event: str, **fields: Any) -> None:
            with suppress(Exception):
                write(event, **fields)

        return quietly


def logger(name: str) -> Log:
    """The log of a module."""
    return Log(structlog.get_logger(name))
