"""Event streams: a task's journal as A2A's events, numbered, for any number of readers."""
