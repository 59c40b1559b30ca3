"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command line that was run sets up logs for its own output, which is gone when the test is over."""
    yield
    structlog.reset_defaults()
