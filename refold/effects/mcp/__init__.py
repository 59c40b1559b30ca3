"""MCP servers: their configuration, a worker's sessions with them, and their tools."""
