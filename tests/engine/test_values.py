"""What an engine takes is checked where it is made."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from refold.engine import Place, TaskFilter


def test_a_time_to_list_tasks_by_has_a_time_zone() -> None:
    """
    An engine in memory could not compare it, and a server would take it for one in UTC.
    """
    at = datetime(2026, 1, 1)  # noqa: DTZ001 - the claim is about such times
    for naive in (lambda: TaskFilter(since=at), lambda: TaskFilter(moved_since=at), lambda: Place(at=at, task_id="t")):
        with pytest.raises(ValidationError, match="should have timezone info"):
            naive()
    assert TaskFilter(since=at.replace(tzinfo=UTC)).since == datetime(2026, 1, 1, tzinfo=UTC)
