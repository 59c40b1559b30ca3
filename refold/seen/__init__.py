"""What operators see of a process: its log, its metrics, what each journal entry counts, and its health over HTTP."""
