"""Schedules: tasks that the server starts by the clock."""
