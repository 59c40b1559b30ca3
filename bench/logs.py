"""Logs of a benchmark's processes: formatted as a deployed worker formats them, and discarded."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import structlog


def quiet_logs() -> None:
    """JSON lines from INFO on, to nowhere, so that no disk is measured."""
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=nowhere),
        cache_logger_on_first_use=True,
    )
