"""The skills: what each does, its graph with the ways that tasks took through it, and a form to start a task."""
