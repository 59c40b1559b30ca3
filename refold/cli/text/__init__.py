"""Turns words of a command line into content, and contents, journal entries and tasks into text."""
