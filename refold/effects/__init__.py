"""What runs inside activities: model calls and tools, their failures, their heartbeats.

A tool's module imports from here: `current`, the call it serves; `TryLater` and `Never`, to classify a failure; `Done`,
`NotDone` and `Unknown`, the answers of its probe. A worker is given `McpServer`s. Importing these names loads neither
Temporal nor a model provider.
"""

from refold.effects.failures.verdicts import Never, TryLater
from refold.effects.invocation import Invocation, as_current, current
from refold.effects.mcp.servers import McpServer
from refold.effects.probing import Done, NotDone, Unknown

__all__ = ["Done", "Invocation", "McpServer", "Never", "NotDone", "TryLater", "Unknown", "as_current", "current"]
