"""Workers of other code on one task queue: who is asked instead, and who is left what another cannot take."""
