"""What `refold upgrade` replays to see whether the code at hand fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.temporal.upgrade.replay_check import ReplayCheck
from tests.temporal.replay.changed import changed, recorded

pytestmark = pytest.mark.slow


async def test_a_check_writes_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A replay writes what a task writes, and nothing would name a large value of code that differs.
    """
    values = tmp_path / "values"
    values.mkdir()
    monkeypatch.setenv("REFOLD_STORAGE", str(values))
    monkeypatch.syspath_prepend(tmp_path)
    large = changed(tmp_path, "workflows.hello", ("content))", "content) * 10_000)"))

    await ReplayCheck([large]).why_not(recorded("hello"))

    assert list(values.iterdir()) == []
