"""The certificate authorities that HTTP clients trust, read once in a process: to read them takes 30 ms of CPU."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

import httpx2


def authorities() -> ssl.SSLContext:
    """Those of the machine, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR` names; all clients share the context."""
    return _authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)
def _authorities(file: str | None, folder: str | None) -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # reads the same settings
