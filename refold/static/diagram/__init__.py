"""A skill as a diagram."""
