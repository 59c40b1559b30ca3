"""Named steps and step tables, compiled to a machine that drives coroutines without an event loop."""
