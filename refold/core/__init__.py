"""The pure core: what a skill is, and how each event changes a task.

Standard library and pydantic only. Nothing here reads a clock, draws a random number, opens a file or waits.
"""
