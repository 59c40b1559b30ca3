"""MCP servers: which ones a worker uses, its sessions with them, and their tools."""
