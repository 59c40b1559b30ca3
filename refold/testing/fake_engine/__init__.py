"""An `Engine` in memory, for tests of programs that use one: no server, and a clock that the test advances.

Rule 1: nothing happens in the background. `start`, `send`, `decide`, `resolve`, `recover`, `cancel` and `advance` do
  all that can be done now, and then return: commands are answered oldest first, task by task, until only timers,
  people, and commands without an answer are left. With `auto=False` this happens in `settle` alone.
Rule 2: time stands still until `advance` moves the clock; each timer fires at its own time.
Rule 3: a command without an answer stays open until the test calls `reply` or `fail`.
Rule 4: refusals are decided by the core's rules, as in any engine.
"""

from refold.testing.fake_engine.clock import Clock
from refold.testing.fake_engine.engine import FakeEngine

__all__ = ["Clock", "FakeEngine"]
