"""The short way: effects as local activities, with their outcomes in the ledger."""
