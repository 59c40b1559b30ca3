"""Data between client, server and worker: payloads, large values in storage, signatures, search attributes."""
