"""The worker process: what it serves, why it refuses to start, its plugin, profile and log."""
