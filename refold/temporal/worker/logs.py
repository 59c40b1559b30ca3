"""Sends a worker's log lines to stderr, since stdout is for results."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_stderr(*, as_json: bool) -> None:
    """Write log lines of INFO and above to stderr, unless the application has set up structlog itself.

    Args:
        as_json: One object a line, instead of columns for people.
    """
    if structlog.is_configured():
        return
    last = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            # A log line about a task's change has the change's own timestamp already.
            structlog.processors.MaybeTimeStamper(fmt="iso", utc=True),
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
