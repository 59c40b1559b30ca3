"""Webhooks on Temporal: a workflow for each, which delivers to it, and the calls that set and remove them."""
