"""Recorded histories against today's code, without a server: what the code would do now, and where that differs."""
