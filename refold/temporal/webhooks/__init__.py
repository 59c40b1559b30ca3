"""Webhooks on Temporal: one workflow per webhook that delivers updates, and the calls that set and remove webhooks."""
