"""The security schemes on the agent card: what a caller has to show."""

from __future__ import annotations

from a2a.types import (
    AgentCard,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from refold.a2a.security.settings import Security


def declare(card: AgentCard, security: Security) -> None:
    """Add the authentication methods to the card; a caller needs any one of them."""
    if security.keys is not None:
        scheme = APIKeySecurityScheme(location="header", name="X-API-Key", description="A key of your own.")
        _add(card, "apiKey", SecurityScheme(api_key_security_scheme=scheme), [])
    if security.tokens is not None:
        bearer = HTTPAuthSecurityScheme(
            scheme="bearer", bearer_format="JWT", description=f"A token of {security.tokens.issuer}."
        )
        scopes = [security.tokens.scope] if security.tokens.scope else []
        _add(card, "bearer", SecurityScheme(http_auth_security_scheme=bearer), scopes)
    if security.open_to_all and card.security_requirements:
        card.security_requirements.append(SecurityRequirement())  # no credentials are accepted, too


def _add(card: AgentCard, name: str, scheme: SecurityScheme, scopes: list[str]) -> None:
    card.security_schemes[name].CopyFrom(scheme)
    requirement = SecurityRequirement()
    requirement.schemes[name].CopyFrom(StringList(list=scopes))
    card.security_requirements.append(requirement)
