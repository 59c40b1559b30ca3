"""What all engines share: a task's view, decisions as a caller makes them, and how a task takes several together."""
