"""Effects that a worker performs within a workflow task, and records in the ledger: the short way."""
