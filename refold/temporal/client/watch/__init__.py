"""Watching a task: one tail for all watchers in a process, woken by a long poll on Temporal's history."""
