"""Real servers that the tests talk to."""
