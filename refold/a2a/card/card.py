"""The agent card: made from the registered skills, never written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentProvider, AgentSkill
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol

from refold.a2a.card.signing import sign
from refold.a2a.settings import Settings
from refold.core.authoring.skill import Card


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The two cards of an agent.

    Attributes:
        public: Anyone may read it.
        extended: For authenticated callers; None if it would not differ from the public card.
    """

    public: AgentCard
    extended: AgentCard | None = None


def cards_for(
    skills: Sequence[Card], settings: Settings, *, webhooks: bool, declare: Callable[[AgentCard], None] | None = None
) -> Cards:
    """The cards of the agent that offers these skills.

    Args:
        skills: The options of each skill, in the order of the card; one or more.
        settings: Name, provider, address and so on.
        webhooks: Whether the gateway delivers webhooks.
        declare: Adds the authentication methods to a card.

    Raises:
        ValueError: A private skill is not served, or all are private; or the signing key cannot be used.
    """
    if unknown := set(settings.private) - {skill.id for skill in skills}:
        raise ValueError(f"private names skills that are not served: {', '.join(sorted(unknown))}")
    public = [skill for skill in skills if skill.id not in settings.private]
    if not public:
        raise ValueError("every skill is private; the card that everybody reads needs one skill or more")

    def made(listed: Sequence[Card]) -> AgentCard:
        card = _card(listed, settings)
        card.capabilities.push_notifications = webhooks
        card.capabilities.extended_agent_card = bool(settings.private)
        if declare is not None:
            declare(card)
        if settings.signing_key is not None:
            sign(card, settings.signing_key)
        return card

    return Cards(public=made(public), extended=made(skills) if settings.private else None)


def _card(skills: Sequence[Card], settings: Settings) -> AgentCard:
    only = skills[0] if len(skills) == 1 else None
    listed = ", ".join(skill.name for skill in skills)
    said = only.description or only.name if only is not None else f"Skills: {listed}."
    capabilities = AgentCapabilities(
        streaming=True,
        extensions=[
            AgentExtension(uri=one.uri, description=one.description, required=one.required)
            for one in settings.extensions
        ],
    )
    card = AgentCard(
        name=settings.name or (only.name if only is not None else "refold"),
        description=settings.description or said,
        version=settings.version,
        supported_interfaces=_interfaces(settings.url),
        capabilities=capabilities,
        default_input_modes=_modes(skill.input_modes for skill in skills),
        default_output_modes=_modes(skill.output_modes for skill in skills),
        skills=[_skill(skill) for skill in skills],
        icon_url=settings.icon_url or "",
        documentation_url=settings.documentation_url or "",
    )
    if settings.provider is not None:
        card.provider.CopyFrom(AgentProvider(organization=settings.provider.organization, url=settings.provider.url))
    return card


def _interfaces(url: str) -> list[AgentInterface]:
    """The card's interfaces: JSON-RPC first, and 1.0 first; clients of 0.3 find theirs among the others.

    No interface is for one skill: a client uses one interface of a card, some the first, some the last, and the tenant
    of such an interface would restrict all its calls to that skill.
    """
    bindings = (TransportProtocol.JSONRPC.value, f"{url}/"), (TransportProtocol.HTTP_JSON.value, url)
    return [
        AgentInterface(url=where, protocol_binding=binding, protocol_version=version)
        for version in (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)
        for binding, where in bindings
    ]


def _skill(card: Card) -> AgentSkill:
    return AgentSkill(
        id=card.id,
        name=card.name,
        description=card.description or card.name,
        tags=card.tags or (card.id,),  # the specification requires at least one
        examples=card.examples,
        input_modes=card.input_modes,
        output_modes=card.output_modes,
    )


def _modes(each: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(mode for modes in each for mode in modes))
