"""One file for each engine, with the same three functions.

`serving(variant)` is a context in which the engine is ready to work, and yields a `Side`: `perform(task, steps)` runs a
task to its end, or goes on with the one of this name; `kept(task)` is how many bytes the engine keeps of an ended task.

Each file runs in an environment of its own, so beside its engine it imports `bench.peers.work` alone.
"""
