"""Writes down how a run of the tests ended, for .ci/run: make turns each exit code of pytest into its own."""

from __future__ import annotations

import pytest


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    cache = getattr(session.config, "cache", None)  # missing under `-p no:cacheprovider`
    if not hasattr(session.config, "workerinput") and cache is not None:
        cache.set("ended", int(exitstatus))
