"""How long the sweeps may be: some minutes in all, or as long as it takes with REFOLD_SWEEP=all."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("REFOLD_SWEEP") == "all"
LONG_S = 7_200 if THOROUGH else 900
"""The longest that one test of a sweep takes, in seconds: what hangs is named before the whole run is given up."""


def examples(number: int) -> int:
    """How many examples a law is tried with: two fifths of this number, or all with REFOLD_SWEEP=all. Every run draws
    others, so that many short runs see what a long one does.
    """
    return number if THOROUGH else 2 * number // 5
