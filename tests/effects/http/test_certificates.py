"""Which certificate authorities HTTP clients trust."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import certifi
import pytest

from refold.effects.http.certificates import trusted


def test_authorities_are_read_once_and_again_where_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Clients share a context; a bundle that was replaced, or another setting, gives another one.
    """
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    system = trusted()
    bundle = tmp_path / "bundle.pem"
    shutil.copy(certifi.where(), bundle)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))

    first = trusted()
    assert trusted() is first is not system
    os.utime(bundle, ns=(1, 1))
    assert trusted() not in (first, system)
    monkeypatch.delenv("SSL_CERT_FILE")
    assert trusted() is system


def test_a_bundle_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    As httpx2 does.
    """
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))

    with pytest.raises(FileNotFoundError):
        trusted()
