"""A running task: its workflow, what it takes and answers, and how it performs what it wants on Temporal."""
