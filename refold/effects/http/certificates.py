"""The certificate authorities that HTTP clients trust. To read them takes 30 ms of CPU, so clients share them."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from pathlib import Path

import httpx2


def trusted() -> ssl.SSLContext:
    """The TLS context that all HTTP clients share: it trusts the authorities in `SSL_CERT_FILE` or `SSL_CERT_DIR`, else
    the system's.

    They are read again for the next client if a setting, the file or the folder's list of files has changed; the
    system's are read once.
    """
    settings = [os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]
    return _read(tuple((path, _changed_ns(path)) for path in settings))


def _changed_ns(path: str | None) -> int:
    try:
        return Path(path).stat().st_mtime_ns if path else 0
    except OSError:
        return 0  # httpx2 says what is wrong with it


@lru_cache(maxsize=4)
def _read(settings: tuple[tuple[str | None, int], ...]) -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # by the same settings
