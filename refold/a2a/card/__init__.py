"""The agent card: what is in it, its route, its signature, and the media types it names."""
