"""What runs inside activities: model calls and tools, their failures, their heartbeats.

A tool's module needs a few names from here: `current`, to learn who asks; `TryLater` and `Never`, to say how it failed;
`Done`, `NotDone` and `Unknown`, for its probe to answer. A worker names its `McpServer`s. They load neither Temporal
nor a model provider.
"""

from refold.effects.failures.verdicts import Never, TryLater
from refold.effects.invocation import Invocation, as_current, current
from refold.effects.mcp.servers import McpServer
from refold.effects.probing import Done, NotDone, Unknown

__all__ = ["Done", "Invocation", "McpServer", "Never", "NotDone", "TryLater", "Unknown", "as_current", "current"]
