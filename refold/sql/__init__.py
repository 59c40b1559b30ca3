"""SQL databases that refold writes to itself: the ledger's, a projection's, and that of a lifecycle on its own."""
