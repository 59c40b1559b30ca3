"""What a command line reads from words and prints as text: contents, journal entries, tasks, tables."""
