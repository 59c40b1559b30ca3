"""Classifies why an effect failed, and whether a retry can help."""
