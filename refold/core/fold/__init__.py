"""Everything that changes a task: refusal, apply, failures, gates, questions, ending; and what is read from a task."""
