"""Tasks, journal entries and costs in words: the same for the command line and the page."""
