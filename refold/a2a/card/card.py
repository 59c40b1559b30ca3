"""The agent card: made from the registered skills, never written by hand. Each skill has a card of its own, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentProvider, AgentSkill
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol

from refold.a2a.card.signing import sign
from refold.a2a.settings import Settings
from refold.core.authoring.skill import Card


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The cards of an agent.

    Attributes:
        public: Anyone may read it.
        extended: For authenticated callers; None if it would not differ from the public card.
        of_skills: The card of each public skill, by the skill's id. Its interfaces lead to that skill.
        extended_of_skills: The card of each private skill, for authenticated callers.
    """

    public: AgentCard
    extended: AgentCard | None = None
    of_skills: Mapping[str, AgentCard] = field(default_factory=dict)
    extended_of_skills: Mapping[str, AgentCard] = field(default_factory=dict)


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
        ValueError: A private skill is not served, or all are private; or a signing key cannot be used.
    """
    for what, ids in (("private", settings.private), ("direct", settings.direct)):
        if unknown := set(ids) - {skill.id for skill in skills}:
            raise ValueError(f"{what} names skills that are not served: {', '.join(sorted(unknown))}")
    public = [skill for skill in skills if skill.id not in settings.private]
    if not public:
        raise ValueError("every skill is private; the card that everybody reads needs one skill or more")

    def made(listed: Sequence[Card], *, of_skill: bool = False) -> AgentCard:
        card = _card(listed, settings, of_skill=of_skill)
        card.capabilities.push_notifications = webhooks
        card.capabilities.extended_agent_card = bool(settings.private) and not of_skill
        if declare is not None:
            declare(card)
        for key in settings.signing_keys:
            sign(card, key, settings.url)
        return card

    return Cards(
        public=made(public),
        extended=made(skills) if settings.private else None,
        of_skills={skill.id: made([skill], of_skill=True) for skill in public},
        extended_of_skills={skill.id: made([skill], of_skill=True) for skill in skills if skill not in public},
    )


def _card(skills: Sequence[Card], settings: Settings, *, of_skill: bool) -> AgentCard:
    only = skills[0] if len(skills) == 1 else None
    listed = ", ".join(skill.name for skill in skills)
    said = only.description or only.name if only is not None else f"Skills: {listed}."
    capabilities = AgentCapabilities(
        streaming=True,
        extensions=[
            AgentExtension(uri=one.uri, description=one.description, required=one.required)
            for one in settings.declared_extensions
        ],
    )
    name = only.name if only is not None else "refold"
    card = AgentCard(
        name=name if of_skill else settings.name or name,
        description=said if of_skill else settings.description or said,
        version=settings.version,
        supported_interfaces=_interfaces(settings, skills[0].id if of_skill else ""),
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


def _interfaces(settings: Settings, skill: str) -> list[AgentInterface]:
    """The card's interfaces: JSON-RPC first, and 1.0 first; clients of 0.3 find theirs among the others.

    No interface of the agent's card is for one skill: a client uses one interface of a card, some the first, some the
    last, and would send all its messages to that skill. A skill's own card leads to the skill by the path, which every
    client follows; over gRPC, which has no paths, by the tenant.
    """
    url = f"{settings.url}/{skill}" if skill else settings.url
    bindings = (TransportProtocol.JSONRPC.value, f"{url}/"), (TransportProtocol.HTTP_JSON.value, url)
    versions = (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3) if settings.serves_0_3 else (PROTOCOL_VERSION_1_0,)
    interfaces = [
        AgentInterface(url=where, protocol_binding=binding, protocol_version=version)
        for version in versions
        for binding, where in bindings
    ]
    if settings.grpc_url is not None:
        grpc = AgentInterface(
            url=settings.grpc_url,
            protocol_binding=TransportProtocol.GRPC.value,
            protocol_version=PROTOCOL_VERSION_1_0,
            tenant=skill,
        )
        interfaces.insert(len(bindings), grpc)
    return interfaces


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
