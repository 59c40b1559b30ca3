"""Posting an update to a webhook, and which addresses may be called at all."""
