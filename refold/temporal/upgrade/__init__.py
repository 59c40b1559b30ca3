"""Moving open tasks to new code: each is checked by a replay, sealed, and then taken by a worker of the new code."""
