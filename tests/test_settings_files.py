"""Files of settings, as editors on Windows save them: with a byte order mark, and lines that end in CR LF."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from joserfc.jwk import ECKey

from refold.a2a.security.settings import security_from_env
from refold.a2a.security.tokens import StaticKeys
from refold.cli.verbs.processes.serve import _settings
from refold.effects.mcp.servers import servers_in
from refold.temporal.encryption import from_env

PUBLIC = ECKey.generate_key("P-256").as_pem(private=False).decode()
KEY = base64.b64encode(bytes(32)).decode()


def callers(file: Path) -> object:
    """The names of the callers, and the keys that admit them."""
    keys = security_from_env({"REFOLD_A2A_API_KEYS_FILE": str(file)}).keys
    assert keys is not None
    return keys.callers


def token_keys(file: Path) -> object:
    """The secret that tokens are checked with."""
    given = {"KEY_FILE": str(file), "ISSUER": "https://issuer.example", "AUDIENCE": "shop"}
    tokens = security_from_env({f"REFOLD_A2A_JWT_{name}": value for name, value in given.items()}).tokens
    assert tokens is not None
    assert isinstance(tokens.keys, StaticKeys)
    return [key.as_dict() for key in tokens.keys.keys]


def encrypting(file: Path) -> object:
    """The ids of the keys, in order."""
    return list(from_env({"REFOLD_ENCRYPTION_KEYS_FILE": str(file)})._ciphers)


READ: dict[str, tuple[Callable[[Path], object], str]] = {
    "keys of callers": (callers, "ann=a-key-of-ann-0123456789abcdef\nbo=a-key-of-bo-0123456789abcdef\n"),
    "the key of tokens": (token_keys, f"{PUBLIC}\n"),
    "a secret of tokens": (token_keys, "0123456789abcdef" * 4 + "\n"),
    "keys that encrypt": (encrypting, f"k1={KEY}\nk2={KEY}\n"),
    "servers of tools": (servers_in, '{"mcpServers": {\n"shop": {"command": "shop-mcp"}}}\n'),
    "settings of a gateway": (_settings, '{\n"name": "Café"}\n'),
}


@pytest.mark.parametrize(("read", "text"), READ.values(), ids=READ)
def test_a_file_is_read_alike_from_every_editor(tmp_path: Path, read: Callable[[Path], object], text: str) -> None:
    """
    The mark is no part of the first name: a caller of another name would own other tasks.
    """
    (plain := tmp_path / "plain").write_bytes(text.encode())
    (marked := tmp_path / "marked").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))

    assert read(marked) == read(plain)
