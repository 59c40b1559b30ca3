"""The agent card's signature: a JWS over the canonical card, so that clients detect a changed card."""

from __future__ import annotations

from pathlib import Path

from a2a.types import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import BaseModel, ConfigDict

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class SigningKey(BaseModel):
    """The key that signs the card.

    Attributes:
        file: A private key in PEM: EC, RSA or Ed25519.
        id: The key's id, as `kid`.
        url: The address of the public key, as `jku`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path
    id: str
    url: str | None = None


def sign(card: AgentCard, key: SigningKey) -> None:
    """Add a signature to a card; any later change to the card invalidates it.

    Raises:
        ValueError: The key cannot be read, or cannot sign.
    """
    try:
        pem = key.file.read_bytes()
        algorithm = _algorithm(pem)
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{key.file} holds no private key in PEM that can be used: {error}") from error
    header = ProtectedHeader(kid=key.id, alg=algorithm, jku=key.url, typ="JOSE")
    if key.url is None:
        del header["jku"]  # type: ignore[misc]  # the SDK's type has no header without one
    create_agent_card_signer(pem, header)(card)


def _algorithm(pem: bytes) -> str:
    key = load_pem_private_key(pem, password=None)
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return _CURVES[key.curve.name]
    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256"
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "EdDSA"
    raise ValueError(f"a {type(key).__name__} does not sign cards; EC, RSA and Ed25519 keys do")
