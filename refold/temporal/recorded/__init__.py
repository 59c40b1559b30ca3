"""Marks in a task's history: written by the worker that takes an event, compared by the worker that rebuilds a task."""
