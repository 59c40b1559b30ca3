"""Observability of Temporal: the SDK's metrics, what the server says of open tasks, a worker's readiness."""
