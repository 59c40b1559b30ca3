"""Loops of the user's own: their steps, what a step is given, and how they become the steps of a skill."""
