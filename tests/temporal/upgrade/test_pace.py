"""Laws of `Pace`."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.temporal.upgrade.pace import Pace


@given(st.floats(0.001, 100), st.lists(st.floats(0, 1_000), min_size=2))
def test_turns_are_apart_and_nobody_waits_for_nothing(gap_s: float, pauses: list[float]) -> None:
    """
    Whenever callers come, no two turns are closer than the gap; and a turn is at once, or one gap after the last.
    """
    pace = Pace(gap_s)
    came = list(accumulate(pauses))
    turns = [now + pace.wait_s(now) for now in came]

    for (earlier, later), now in zip(pairwise(turns), came[1:], strict=True):
        assert later == pytest.approx(max(now, earlier + gap_s))
