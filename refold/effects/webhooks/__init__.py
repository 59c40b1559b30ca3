"""Posts updates to webhooks, and restricts the addresses that may be called."""
