"""What travels and what is kept: payloads, large values, signatures, search attributes."""
