"""Ready-made middleware of an agent: guards, limits, memory, tracing."""
