"""The receipt ledger: what makes an effect happen once, whichever worker dies, on SQLite or PostgreSQL."""
