"""What the page lists over all tasks: the tasks, what is done with several of them, and what was decided."""
