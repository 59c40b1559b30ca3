"""What all engines share: a task's view, what each refuses and in which words, and decisions, also several together."""
