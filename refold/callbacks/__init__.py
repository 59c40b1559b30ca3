"""Addresses that answer a task's question once: how they are made, and how one is read."""
