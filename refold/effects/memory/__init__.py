"""What outlives a task, for each owner apart: sessions of turns, and facts that an agent remembers.

`MEMORY` is the tool pair for agents: list it with an agent's tools and with the worker's.
"""

from refold.effects.memory.memory import Memory
from refold.effects.memory.tools import MEMORY, recall, remember
from refold.effects.memory.turn import Turn

__all__ = ["MEMORY", "Memory", "Turn", "recall", "remember"]
