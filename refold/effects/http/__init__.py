"""The one HTTP client of a worker, and the idempotency keys that it puts on the requests of tools."""
