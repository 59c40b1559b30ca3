"""The gateway's security by its settings: what they mean, and what is wrong with those that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, RSAKey

from refold.a2a.security import Security, SettingsError, security_from_env
from refold.a2a.security.tokens import StaticKeys

KEY = "0123456789abcdef"
SIGNED = {"REFOLD_A2A_JWT_ISSUER": "https://issuer.example.org", "REFOLD_A2A_JWT_AUDIENCE": "me, also-me"}


def test_without_settings_only_this_machine_may_call() -> None:
    """
    Nothing to set up, nothing open to others.
    """
    assert security_from_env({}) == Security(anonymous="loopback")


def test_keys_come_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    """
    By name; as they are, or as hashes. Who has none may not call any more.
    """
    file = tmp_path / "keys"
    file.write_text(f"# people\nbob = {KEY}-of-bob\n\neve=sha256:{'0' * 64}\n")
    security = security_from_env(
        {"REFOLD_A2A_API_KEYS": f"ada={KEY},ada={KEY}-new", "REFOLD_A2A_API_KEYS_FILE": str(file)}
    )

    assert security.anonymous is None
    assert security.keys is not None
    given = (KEY, f"{KEY}-new", f"{KEY}-of-bob", "0" * 64, "")
    assert [security.keys.caller(key) for key in given] == ["ada", "ada", "bob", None, None]


def test_a_comment_in_the_file_of_keys_reaches_to_the_end_of_its_line(tmp_path: Path) -> None:
    """
    On a line of its own or behind a key, whatever the comment holds, commas too. A `#` within a key belongs to the key.
    """
    file = tmp_path / "keys"
    file.write_text(f"# Ada, Bob = people, and billing\nada={KEY}  # Ada, since May\n\t#, eve\nbob={KEY}#5,  # Bob\n")
    security = security_from_env({"REFOLD_A2A_API_KEYS_FILE": str(file)})

    assert security.keys is not None
    given = (KEY, f"{KEY}#5", f"{KEY}  # Ada", f"{KEY}#5,")
    assert [security.keys.caller(key) for key in given] == ["ada", "bob", None, None]
    assert len(security.keys.callers) == 2


@pytest.mark.parametrize("kind", ["rsa", "ec", "after a comment", "secret"])
def test_tokens_are_checked_with_a_key_by_hand(kind: str, tmp_path: Path) -> None:
    """
    A public key in PEM, from the environment or a file; or a secret.
    """
    pem = {
        "rsa": lambda: RSAKey.generate_key(2048).as_pem(private=False).decode(),
        "ec": lambda: ECKey.generate_key("P-256").as_pem(private=False).decode(),
        "after a comment": lambda: "Of our issuer\n" + ECKey.generate_key("P-256").as_pem(private=False).decode(),
        "secret": lambda: "s" * 32,
    }[kind]()
    (tmp_path / "key.pem").write_text(pem)
    by_text = security_from_env({**SIGNED, "REFOLD_A2A_JWT_KEY": pem})
    by_file = security_from_env({**SIGNED, "REFOLD_A2A_JWT_KEY_FILE": str(tmp_path / "key.pem")})

    for security in (by_text, by_file):
        assert security.tokens is not None
        assert isinstance(security.tokens.keys, StaticKeys)
        assert security.tokens.audience == ("me", "also-me")
        assert security.anonymous is None


def test_the_other_settings() -> None:
    """
    Lists between commas, numbers from 1 on, rates in words.
    """
    security = security_from_env(
        {
            "REFOLD_A2A_ANONYMOUS": "1",
            "REFOLD_A2A_HOSTS": "a.example.org, b.example.org",
            "REFOLD_A2A_ORIGINS": "https://app.example.org",
            "REFOLD_A2A_MAY_VOUCH": "desk",
            "REFOLD_A2A_MAX_BODY_BYTES": "1000",
            "REFOLD_A2A_MAX_PARTS": "7",
            "REFOLD_A2A_MAX_DEPTH": "9",
            "REFOLD_A2A_MAX_VALUES": "11",
            "REFOLD_A2A_RATE": "10/second;500/day",
        }
    )

    assert security == Security(
        anonymous="everywhere",
        hosts=("a.example.org", "b.example.org"),
        origins=("https://app.example.org",),
        may_vouch=("desk",),
        body_bytes=1000,
        parts=7,
        depth=9,
        values=11,
        rate="10/second;500/day",
    )


@pytest.mark.parametrize("name", ["hosts", "origins", "may_vouch"])
def test_a_text_is_no_list_of_them(name: str) -> None:
    """
    Each part of it would count as one: the caller `bot` could vouch for people where `chat-bot` may.
    """
    given: dict[str, Any] = {name: "chat-bot"}
    with pytest.raises(SettingsError, match=rf"{name} is a list of texts; got 'chat-bot' \(str\); write \(...,\)$"):
        Security(**given)


def test_hosts_and_origins_are_kept_as_requests_name_them() -> None:
    """
    A browser names its origin without a path and without the usual port; a host counts without its port.
    """
    security = security_from_env(
        {
            "REFOLD_A2A_HOSTS": "Agent.example.org:9000, 10.0.0.7, [::1]:9000, ::1",
            "REFOLD_A2A_ORIGINS": "https://App.example.org/, https://b.example.org:443, http://localhost:8233",
        }
    )

    assert security.hosts == ("agent.example.org", "10.0.0.7", "::1", "::1")
    assert security.origins == ("https://app.example.org", "https://b.example.org", "http://localhost:8233")


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"API_KEYS": KEY}, "key 1 is not NAME=KEY"),
        ({"API_KEYS": f"={KEY}"}, "the name of key 1"),
        ({"API_KEYS": f"(router) ada={KEY}"}, r"it begins with '\(router\)'"),
        ({"API_KEYS": "ada=short"}, "shorter than 16"),
        ({"API_KEYS": "ada=sechzehn Zeichen, gut gezählt"}, "only ASCII"),
        ({"API_KEYS": "ada=schöner-schlüssel"}, "only ASCII"),
        ({"API_KEYS": f"ada=sha256:{'0' * 63}"}, "64 hexadecimal digits"),
        ({"API_KEYS": f"ada={KEY},bob={KEY}"}, "have the same key"),
        ({"API_KEYS_FILE": "/nowhere"}, "API_KEYS_FILE"),
        ({"JWT_KEY": "s" * 32}, "JWT_ISSUER and REFOLD_A2A_JWT_AUDIENCE must be set"),
        ({"JWT_KEY": "s" * 31, **SIGNED}, "at least 32"),
        ({"JWT_KEY": "-----BEGIN NOTHING-----", **SIGNED}, "no public key"),
        ({"JWT_JWKS_URL": "http://issuer.example.org/keys", **SIGNED}, "not an https address"),
        ({"JWT_JWKS_URL": "https://x.example.org", "JWT_KEY": "s" * 32, **SIGNED}, "cannot both be set"),
        ({"JWT_KEY": "s" * 32, "JWT_ALGORITHMS": "none", **SIGNED}, "names none"),
        ({"ANONYMOUS": "perhaps"}, "is 1 or 0"),
        ({"MAX_PARTS": "0"}, "a whole number from 1 on"),
        ({"MAX_BODY_BYTES": "1MB"}, "a whole number from 1 on"),
        ({"ORIGINS": "https://app.example.org/start"}, "'https://app.example.org/start' is no origin, such as https:"),
        ({"ORIGINS": "https://a.example.org, app.example.org"}, "ORIGINS: 'app.example.org' is no origin"),
        ({"ORIGINS": "*"}, "is no origin"),
        ({"HOSTS": "https://agent.example.org"}, "HOSTS: 'https://agent.example.org' is no name of a host"),
        ({"HOSTS": "*"}, "is no name of a host"),
        ({"RATE": "often"}, "RATE"),
        ({"RATE_STORAGE": "nowhere://"}, "RATE_STORAGE"),
        ({"RATE_STORAGE": "memory://"}, "begin it with `async\\+`"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(environ: dict[str, str], says: str) -> None:
    """
    By the setting's name, and without the key that is in it.
    """
    full = {name if name.startswith("REFOLD") else f"REFOLD_A2A_{name}": value for name, value in environ.items()}

    with pytest.raises(SettingsError, match=says) as raised:
        security_from_env(full)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("security", "host", "fits"),
    [
        (Security(), "127.0.0.1", True),
        (Security(), "::1", True),
        (Security(), "0.0.0.0", False),
        (Security(), "10.0.0.7", False),
        (Security(anonymous="everywhere"), "0.0.0.0", True),
        (security_from_env({"REFOLD_A2A_API_KEYS": f"ada={KEY}"}), "0.0.0.0", True),
    ],
)
def test_others_are_let_in_by_a_decision_only(security: Security, host: str, fits: bool) -> None:
    """
    Where others could reach it, something must tell them apart; or somebody says that nothing has to.
    """
    if fits:
        security.check_bind(host)
        return
    with pytest.raises(SettingsError, match="others could reach it at"):
        security.check_bind(host)
