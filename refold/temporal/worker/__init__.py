"""The worker's side: skills as workflows, commands as activities, the sandbox, and the worker process."""
