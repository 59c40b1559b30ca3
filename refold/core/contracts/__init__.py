"""Contracts: what the steps of a skill may read and write, which moves are legal, and the audit of each."""
