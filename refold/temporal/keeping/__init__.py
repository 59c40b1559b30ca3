"""What a task leaves on a server: its runs' histories, read as data and deleted."""
