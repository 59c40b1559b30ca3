"""refold: agents that cannot lose their work.

A skill is a pure reducer, or steps that compile to one; it runs as a durable state machine on Temporal. This module
is the pure core; what runs it is imported by name: `from refold.temporal import connect`.
"""

from refold.core import *  # noqa: F403 - the core's own list is the list
from refold.core import __all__ as __all__
