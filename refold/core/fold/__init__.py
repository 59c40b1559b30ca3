"""Everything that changes a task, in the order in which it happens; and what is read from a task."""
