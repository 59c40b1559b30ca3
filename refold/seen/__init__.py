"""What operators see of a process: its metrics, what each journal entry counts, and its health over HTTP."""
