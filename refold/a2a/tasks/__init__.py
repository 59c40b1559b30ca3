"""What A2A's methods do with tasks: send, decide, read, list, route, and store webhook configs."""
