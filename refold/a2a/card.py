"""The agent card: made from the registered skills, never written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentProvider, AgentSkill
from a2a.utils.constants import PROTOCOL_VERSION_1_0, TransportProtocol

from refold.a2a.settings import Settings
from refold.core.skill import Card


def agent_card(skills: Sequence[Card], settings: Settings) -> AgentCard:
    """The card that everybody may read.

    Args:
        skills: What is told of each skill, in the order it is listed; one or more.
        settings: Who offers them, and where.
    """
    only = skills[0] if len(skills) == 1 else None
    listed = ", ".join(skill.name for skill in skills)
    card = AgentCard(
        name=settings.name or (only.name if only else "refold"),
        description=settings.description or (only and (only.description or only.name)) or f"Skills: {listed}.",
        version=settings.version,
        supported_interfaces=_interfaces(skills, settings.url),
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=_modes(skill.input_modes for skill in skills),
        default_output_modes=_modes(skill.output_modes for skill in skills),
        skills=[_skill(skill) for skill in skills],
        icon_url=settings.icon_url or "",
        documentation_url=settings.documentation_url or "",
    )
    if settings.provider is not None:
        card.provider.CopyFrom(AgentProvider(organization=settings.provider.organization, url=settings.provider.url))
    return card


def _interfaces(skills: Sequence[Card], url: str) -> list[AgentInterface]:
    """JSON-RPC first, for all skills; then the same for one skill each, named as the tenant."""
    tenants = ["", *(skill.id for skill in skills)] if len(skills) > 1 else [""]
    bindings = (TransportProtocol.JSONRPC.value, f"{url}/"), (TransportProtocol.HTTP_JSON.value, url)
    return [
        AgentInterface(url=where, protocol_binding=binding, tenant=tenant, protocol_version=PROTOCOL_VERSION_1_0)
        for tenant in tenants
        for binding, where in bindings
    ]


def _skill(card: Card) -> AgentSkill:
    return AgentSkill(
        id=card.id,
        name=card.name,
        description=card.description or card.name,
        tags=card.tags or (card.id,),  # the specification asks for at least one
        examples=card.examples,
        input_modes=card.input_modes,
        output_modes=card.output_modes,
    )


def _modes(each: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(mode for modes in each for mode in modes))
