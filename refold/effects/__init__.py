"""What runs inside activities: model calls and tools, their failures, their heartbeats.

A tool's module needs three names from here: `current`, to learn who asks, and `TryLater` and `Never`, to say how it
failed. They load neither Temporal nor a model provider.
"""

from refold.effects.invocation import Invocation, as_current, current
from refold.effects.verdicts import Never, TryLater

__all__ = ["Invocation", "Never", "TryLater", "as_current", "current"]
