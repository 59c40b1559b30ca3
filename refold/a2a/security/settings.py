"""The settings of who may call, and how much: read from the environment, or passed as values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from limits import parse_many

from refold.a2a.connections import HEADER_S, MOST_CONNECTIONS
from refold.a2a.security.api_keys import SHORTEST, ApiKeys, api_keys
from refold.a2a.security.host_and_origin import as_host, as_origin
from refold.a2a.security.key_set import KeySet
from refold.a2a.security.rate import counting
from refold.a2a.security.tokens import ALGORITHMS, Keys, StaticKeys, TokenRules
from refold.engine import EngineError
from refold.engine.arguments import Count, Within, takes
from refold.web.hosts import is_loopback

PREFIX = "REFOLD_A2A_"
MIB = 1024 * 1024

Anonymous = Literal["loopback", "everywhere"]

T = TypeVar("T")


class SettingsError(EngineError):
    """A setting of the gateway is wrong, or opens it to everyone; the message names the setting, and what to do."""


@takes(SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Who may call the gateway, from where, how much, and how often.

    With neither keys nor tokens, callers on loopback need no credentials, and no other callers are allowed.

    Attributes:
        keys: Callers by API key.
        tokens: Callers by bearer token.
        anonymous: From where anonymous callers are allowed; None requires credentials of every caller.
        hosts: Accepted host names; empty accepts any if every caller needs credentials, else loopback's and that of the
            gateway's address, and any IP address if anonymous callers are allowed from everywhere.
        origins: Origins whose web pages may call, such as `https://app.example.org`; the gateway answers their CORS
            requests.
        may_vouch: Callers that may name the approver of a decision.
        body_bytes: Maximum size of a request's body.
        body_seconds: Maximum time to receive a body, or a request over gRPC.
        parts: Maximum number of parts of a message.
        depth: Maximum depth of a body's JSON. Data in a message is nested less deep, whatever this is.
        values: Maximum number of values in a body's JSON, or in a request over gRPC.
        connections: Maximum number of open connections, and of open calls over gRPC.
        header_seconds: Maximum time to receive a request's headers.
        rate: How often one caller may call, such as `600/minute` or `20/second;5000/day`; None sets no limit. Anonymous
            callers are counted by address.
        rate_storage: Where calls are counted, as `limits` names it: `async+memory://` for one process,
            `async+redis://host:6379` for all processes that share it.
        prefix: What the names of the settings begin with, for messages.
    """

    keys: ApiKeys | None = None
    tokens: TokenRules | None = None
    anonymous: Anonymous | None = "loopback"
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    may_vouch: tuple[str, ...] = ()
    body_bytes: Count = 16 * MIB
    body_seconds: Annotated[float, Within(0.01)] = 30.0
    parts: Count = 100
    depth: Count = 64
    values: Count = 50_000
    connections: Count = MOST_CONNECTIONS
    header_seconds: Annotated[float, Within(0.01)] = HEADER_S
    rate: str | None = None
    rate_storage: str = "async+memory://"
    prefix: str = PREFIX

    @property
    def knows_names(self) -> bool:
        """Whether callers can say who they are, by a key or token."""
        return self.keys is not None or self.tokens is not None

    @property
    def open_to_all(self) -> bool:
        """Whether everyone who can reach the gateway may call it."""
        return self.anonymous == "everywhere"

    def check_bind(self, host: str) -> None:
        """Check that the gateway may listen on this address.

        Raises:
            SettingsError: Callers on other machines could reach it there, and none or all of them could call it.
        """
        if self.keys or self.tokens or self.open_to_all or is_loopback(host):
            return
        raise SettingsError(
            f"others could reach it at {host}, and no way is set to tell them apart: set {self.prefix}API_KEYS or "
            f"{self.prefix}JWT_JWKS_URL, listen on 127.0.0.1, or let everybody in with {self.prefix}ANONYMOUS=1"
        )


@takes(SettingsError)
def security_from_env(environ: Mapping[str, str] = os.environ, *, prefix: str = PREFIX) -> Security:
    """The settings in the environment: `REFOLD_A2A_…`, as the reference lists them.

    Args:
        environ: The environment.
        prefix: What their names begin with, for another service with callers of its own.

    Raises:
        SettingsError: One is wrong, or they contradict each other.
    """
    env = _Env(environ, prefix)
    keys, tokens = _api_keys(env), _tokens(env)
    everywhere = env.flag("ANONYMOUS")
    usual = Security()
    return Security(
        keys=keys,
        tokens=tokens,
        anonymous="everywhere" if everywhere else None if keys or tokens else "loopback",
        hosts=env.each("HOSTS", as_host),
        origins=env.each("ORIGINS", as_origin),
        may_vouch=env.words("MAY_VOUCH"),
        body_bytes=env.number("MAX_BODY_BYTES", usual.body_bytes),
        parts=env.number("MAX_PARTS", usual.parts),
        depth=env.number("MAX_DEPTH", usual.depth),
        values=env.number("MAX_VALUES", usual.values),
        connections=env.number("MAX_CONNECTIONS", usual.connections),
        rate=env.read("RATE", _rate),
        rate_storage=env.read("RATE_STORAGE", _storage) or usual.rate_storage,
        prefix=prefix,
    )


class _Env:
    def __init__(self, environ: Mapping[str, str], prefix: str) -> None:
        self.environ = environ
        self.prefix = prefix

    def text(self, name: str) -> str | None:
        return self.environ.get(self.prefix + name, "").strip() or None

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word for part in (self.text(name) or "").split(",") if (word := part.strip()))

    def each(self, name: str, reader: Callable[[str], str]) -> tuple[str, ...]:
        return self.read(name, lambda _: tuple(map(reader, self.words(name)))) or ()

    def flag(self, name: str) -> bool:
        given = (self.text(name) or "0").lower()
        if given not in ("0", "1", "true", "false"):
            raise SettingsError(f"{self.prefix}{name} is 1 or 0, not {given!r}")
        return given in ("1", "true")

    def number(self, name: str, usual: int) -> int:
        given = self.text(name)
        if given is None:
            return usual
        if not given.isdecimal() or int(given) < 1:
            raise SettingsError(f"{self.prefix}{name} is a whole number from 1 on, not {given!r}")
        return int(given)

    def read(self, name: str, reader: Callable[[str], T]) -> T | None:
        given = self.text(name)
        if given is None:
            return None
        try:
            return reader(given)
        except (ValueError, JoseError, OSError) as error:
            raise SettingsError(f"{self.prefix}{name}: {error}") from None

    def file(self, name: str, reader: Callable[[str], T]) -> T | None:
        return self.read(name, lambda path: reader(Path(path).read_text(encoding="utf-8-sig")))

    def one_of(self, *names: str) -> None:
        given = [self.prefix + name for name in names if self.text(name)]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} cannot both be set")


def _rate(given: str) -> str:
    parse_many(given)
    return given


def _storage(given: str) -> str:
    counting(given)
    return given


def _api_keys(env: _Env) -> ApiKeys | None:
    written, filed = env.read("API_KEYS", api_keys), env.file("API_KEYS_FILE", api_keys)
    if written is None or filed is None:
        return written or filed
    return ApiKeys({**written.callers, **filed.callers})


def _tokens(env: _Env) -> TokenRules | None:
    env.one_of("JWT_JWKS_URL", "JWT_KEY", "JWT_KEY_FILE")
    keys: Keys | None = (
        env.read("JWT_JWKS_URL", KeySet) or env.read("JWT_KEY", static_key) or env.file("JWT_KEY_FILE", static_key)
    )
    if keys is None:
        return None
    issuer, audience = env.text("JWT_ISSUER"), env.words("JWT_AUDIENCE")
    if issuer is None or not audience:
        raise SettingsError(
            f"{env.prefix}JWT_ISSUER and {env.prefix}JWT_AUDIENCE must be set: a token that was made for another "
            "service would open this one, too"
        )
    algorithms = env.words("JWT_ALGORITHMS")
    known = {name for names in ALGORITHMS.values() for name in names}
    if unknown := set(algorithms) - known:
        said = f"names {', '.join(sorted(unknown))}; those that count: {', '.join(sorted(known))}"
        raise SettingsError(f"{env.prefix}JWT_ALGORITHMS {said}")
    return TokenRules(
        keys=keys,
        issuer=issuer,
        audience=audience,
        algorithms=algorithms,
        claim=env.text("JWT_CLAIM") or "sub",
        scope=env.text("JWT_SCOPE"),
    )


def static_key(given: str) -> StaticKeys:
    """A fixed key: a public key in PEM, else a secret for HS256, HS384 and HS512.

    Raises:
        ValueError: The key is of an unknown kind, or a secret that is too short.
    """
    text = given.strip()
    if "-----BEGIN" not in text:  # lines may stand before it: `openssl pkcs12` writes some
        if len(text) < SHORTEST * 2:
            raise ValueError(f"a secret has at least {SHORTEST * 2} characters")
        return StaticKeys((OctKey.import_key(text),))
    kinds: tuple[type[Key], ...] = (RSAKey, ECKey, OKPKey)
    for kind in kinds:
        try:
            return StaticKeys((kind.import_key(text),))
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError("it is no public key in PEM of a kind that is known: RSA, EC or Ed25519")
