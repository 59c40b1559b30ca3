"""SQL databases that refold writes to itself: the receipt ledger's, and a projection's."""
