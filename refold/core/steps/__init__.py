"""Skills made of steps: `@step` methods or tables, compiled to a machine that runs coroutines without an event loop."""
