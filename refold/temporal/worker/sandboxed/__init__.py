"""The sandbox that skills run in, and what their tasks share there."""
