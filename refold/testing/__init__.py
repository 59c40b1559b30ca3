"""The testing kit: play a skill by a script, an engine in memory, and laws that hold for every skill. No server needed.

The laws and their strategies need Hypothesis (`pip install 'refold[testing]'`), which is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from refold.testing.answers import ScriptError, calls, permanent, transient, unknown
from refold.testing.coverage import Coverage, coverage
from refold.testing.fake_engine import Clock, FakeEngine
from refold.testing.play import Played, play
from refold.testing.turns import approve, cancel, deny, fails, fires, passes, refused, reply, resolve, user

if TYPE_CHECKING:
    from refold.testing.laws import LawBroken as LawBroken
    from refold.testing.laws import check_history as check_history
    from refold.testing.laws import check_laws as check_laws
    from refold.testing.laws import laws_of as laws_of
    from refold.testing.strategies import histories as histories

_NEED_HYPOTHESIS = {
    "LawBroken": "refold.testing.laws",
    "check_history": "refold.testing.laws",
    "check_laws": "refold.testing.laws",
    "histories": "refold.testing.strategies",
    "laws_of": "refold.testing.laws",
}

__all__ = [
    "Clock",
    "Coverage",
    "FakeEngine",
    "LawBroken",
    "Played",
    "ScriptError",
    "approve",
    "calls",
    "cancel",
    "check_history",
    "check_laws",
    "coverage",
    "deny",
    "fails",
    "fires",
    "histories",
    "laws_of",
    "passes",
    "permanent",
    "play",
    "refused",
    "reply",
    "resolve",
    "transient",
    "unknown",
    "user",
]


def __getattr__(name: str) -> Any:
    if name not in _NEED_HYPOTHESIS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_NEED_HYPOTHESIS[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{__name__}.{name} needs Hypothesis: pip install 'refold[testing]'") from error
