"""The log of workers and gateways. A line that cannot be written is dropped, and stops nothing.

Where nobody reads a worker's stderr any more (`refold worker | head`, a terminal that was closed) or the disk is full,
each line raises. In a task's workflow that would fail the workflow task, again and again; in an activity it would fail
an effect that has taken place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import structlog

TEXTS = {
    "event_refused": ("reason", "by"),
    "approval_requested": ("message",),
    "approval_reminder": ("message",),
    "state_transition": ("comment",),
}
"""The fields of refold's log lines that quote what people or models wrote; a transition's stand in its `metadata`."""

ENCRYPTED = "(encrypted)"


class _Process:
    texts_kept = True


_process = _Process()


def texts_of_lines(*, kept: bool) -> None:
    """Whether the lines of this process have `TEXTS`, from now on.

    Not a processor of structlog's: whoever sets up the application's log would remove it.
    """
    _process.texts_kept = kept


class Log:
    """structlog's logger of this name, as the application has set it up."""

    def __init__(self, inner: Any, fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._inner, self._fields = inner, fields

    def bind(self, **fields: Any) -> Log:
        """The same log, with these fields in each line."""
        return Log(self._inner, {**self._fields, **fields})

    def __getattr__(self, level: str) -> Callable[..., None]:
        write = getattr(self._inner, level)

        def quietly(event: str, **fields: Any) -> None:
            line = {**self._fields, **fields}
            with suppress(Exception):
                write(event, **line if _process.texts_kept else _without_texts(event, line))

        return quietly


def logger(name: str) -> Log:
    """The log of a module."""
    return Log(structlog.get_logger(name))


def _without_texts(event: str, line: Mapping[str, Any]) -> dict[str, Any]:
    texts = dict.fromkeys(TEXTS.get(event, ()), ENCRYPTED)
    kept = {name: texts.get(name, value) for name, value in line.items()}
    if isinstance(said := line.get("metadata"), dict):
        kept["metadata"] = {name: texts.get(name, value) for name, value in said.items()}
    return kept
