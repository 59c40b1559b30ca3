"""Authentication by bearer token: a JWT signed by a trusted issuer.

Rule 1: the keys determine the accepted algorithms, never the token.
Rule 2: a token must have the right issuer and audience, and an expiry.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from joserfc import jws, jwt
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError, MissingClaimError
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from refold.a2a.security.principal import problem_with

ALGORITHMS: dict[type[Any], tuple[str, ...]] = {
    RSAKey: ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ECKey: ("ES256", "ES384", "ES512"),
    OKPKey: ("EdDSA", "Ed25519"),
    OctKey: ("HS256", "HS384", "HS512"),
}
"""The algorithms of each kind of key. A public key is never accepted as a secret."""

LONGEST = 16 * 1024  # maximum bytes of a token

_UNREADABLE = (JoseError, ValueError, TypeError)
"""What joserfc raises for a token; a `TypeError` where a member of its header is of another type than it should be."""


class BadToken(Exception):
    """The token is not valid; the message says why, and may be shown to its sender."""


class Lacks(Exception):
    """The token is valid, but lacks the scope."""


class Keys(Protocol):
    """The keys that may have signed a token."""

    async def find(self, kid: str | None) -> Sequence[Key]:
        """The keys with this id; all keys if the token names none.

        Raises:
            KeysUnavailable: They cannot be fetched now.
        """
        ...


class KeysUnavailable(Exception):
    """The keys are missing, so no token can be checked."""


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """Fixed keys, from the settings."""

    keys: tuple[Key, ...]

    async def find(self, kid: str | None) -> Sequence[Key]:
        """All keys: a fixed key often has no id."""
        return self.keys


class _Registry(jws.JWSRegistry):
    max_header_length = 4096  # some issuers send certificates along


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Which tokens are valid.

    Attributes:
        keys: The keys that may have signed a token.
        issuer: The required issuer.
        audience: The accepted audiences; a token must name one.
        algorithms: Restricts the algorithms of the keys; empty accepts all of them.
        claim: The claim that names the caller.
        scope: A word that `scope` (or the list `scp`) must have; None requires none.
        leeway_s: How much clocks may differ.
    """

    keys: Keys
    issuer: str
    audience: tuple[str, ...]
    algorithms: tuple[str, ...] = ()
    claim: str = "sub"
    scope: str | None = None
    leeway_s: int = 30

    async def caller(self, token: str) -> str:
        """The caller that the token names.

        Raises:
            BadToken: It is not a token, has a wrong signature, issuer or audience, or is expired.
            Lacks: It lacks the scope.
            KeysUnavailable: It cannot be checked now.
        """
        claims = await self._claims(token)
        self._check(claims)
        caller = claims.get(self.claim)
        if not isinstance(caller, str) or (problem := problem_with(caller)):
            said = "is missing" if caller is None else problem if isinstance(caller, str) else "is not text"
            raise BadToken(f"its claim {self.claim!r} names nobody: {said}")
        if self.scope is not None and self.scope not in _scopes(claims):
            raise Lacks(f"the token lacks the scope {self.scope!r}")
        return caller

    async def _claims(self, token: str) -> dict[str, Any]:
        if len(token) > LONGEST:
            raise BadToken(f"it is longer than {LONGEST} bytes")
        try:
            header = jws.extract_compact(token.encode()).headers()
        except _UNREADABLE as error:
            raise BadToken("it is no JWT") from error
        kid = header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise BadToken("its key id is not text")
        usable = [(key, names) for key in await self.keys.find(kid) if (names := self._usable(key))]
        if not any(header.get("alg") in names for _, names in usable):
            raise BadToken("it is signed with a key or an algorithm that does not count here")
        for key, names in usable:
            if header["alg"] not in names:
                continue
            registry = _Registry(algorithms=names, strict_check_header=False)
            try:
                return jwt.decode(token, key, registry=registry).claims
            except _UNREADABLE:
                continue
        raise BadToken("its signature is wrong")

    def _usable(self, key: Key) -> Collection[str]:
        """The algorithms that this key may have signed with."""
        said = key.get("alg")
        names = ALGORITHMS[type(key)]
        if key.get("use") == "enc" or (said is not None and said not in names):
            return ()
        names = names if said is None else (str(said),)
        return [name for name in names if not self.algorithms or name in self.algorithms]

    def _check(self, claims: dict[str, Any]) -> None:
        wanted = jwt.JWTClaimsRegistry(
            leeway=self.leeway_s,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "values": list(self.audience)},
            exp={"essential": True},
        )
        try:
            wanted.validate(claims)
        except ExpiredTokenError:
            raise BadToken("it has expired") from None
        except MissingClaimError as error:
            raise BadToken(f"it lacks {error.claim}") from None
        except ClaimError as error:
            raise BadToken(f"its claim {error.claim!r} does not fit") from None


def _scopes(claims: dict[str, Any]) -> Collection[str]:
    for name in ("scope", "scp"):
        match claims.get(name):
            case str(words):
                return words.split()
            case list(words):
                return words
            case _:
                pass
    return ()
