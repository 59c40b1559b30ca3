"""The agent card: its content, its route, its signature, and the media types that it names."""
