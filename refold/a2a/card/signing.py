"""The agent card's signatures: JWS over the canonical card, so that clients detect a changed card.

To replace a key, sign with both for as long as clients may still know the old one alone: a card is good if one of its
signatures is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from a2a.types import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from pydantic import BaseModel, ConfigDict

KEYS_PATH = "/.well-known/jwks.json"

Private: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class SigningKey(BaseModel):
    """The key that signs the card.

    Attributes:
        file: A private key in PEM: EC, RSA or Ed25519.
        id: The key's id, as `kid`.
        url: The address of the public keys, as `jku`; None is the gateway's own, which serves them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path
    id: str
    url: str | None = None


def sign(card: AgentCard, key: SigningKey, gateway: str) -> None:
    """Add a signature to a card; any later change to the card invalidates it.

    Args:
        card: Its other signatures stay.
        key: Signs.
        gateway: The gateway's address, where its keys are found.

    Raises:
        ValueError: The key cannot be read, or cannot sign.
    """
    pem, private = _read(key)
    header = ProtectedHeader(kid=key.id, alg=_algorithm(private), jku=key.url or f"{gateway}{KEYS_PATH}", typ="JOSE")
    create_agent_card_signer(pem, header)(card)


def key_set(keys: Sequence[SigningKey]) -> dict[str, Any]:
    """The public halves of the keys, as a JSON Web Key Set."""
    return {"keys": [_public(key) for key in keys]}


def _public(key: SigningKey) -> dict[str, Any]:
    _, private = _read(key)
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    kind: type[Key]
    match private:
        case ec.EllipticCurvePrivateKey():
            kind = ECKey
        case rsa.RSAPrivateKey():
            kind = RSAKey
        case _:
            kind = OKPKey
    said = {"kid": key.id, "use": "sig", "alg": _algorithm(private)}
    return {**kind.import_key(pem).as_dict(private=False), **said}


def _read(key: SigningKey) -> tuple[bytes, Private]:
    try:
        pem = key.file.read_bytes()
        private = load_pem_private_key(pem, password=None)
        if isinstance(private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey):
            _algorithm(private)
            return pem, private
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{key.file} holds no private key in PEM that can be used: {error}") from error
    raise ValueError(f"{key.file} holds a {type(private).__name__}; EC, RSA and Ed25519 keys sign cards")


def _algorithm(key: Private) -> str:
    match key:
        case ec.EllipticCurvePrivateKey():
            if key.curve.name not in _CURVES:
                raise ValueError(f"no algorithm signs with the curve {key.curve.name}")
            return _CURVES[key.curve.name]
        case rsa.RSAPrivateKey():
            return "RS256"
        case _:
            return "EdDSA"
