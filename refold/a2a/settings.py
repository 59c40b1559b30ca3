"""What a gateway is told about itself: who it is, where it is reached, and how it behaves."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, field_validator

from refold.a2a.card.signing import SigningKey

LOOPBACK_URL = "http://127.0.0.1:9000"


class Provider(BaseModel):
    """Who offers the agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    organization: str
    url: str


class Extension(BaseModel):
    """An extension of the protocol that the agent speaks.

    Attributes:
        uri: Its name.
        description: What it is for.
        required: Callers that do not name it in `A2A-Extensions` are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    description: str = ""
    required: bool = False


class Settings(BaseModel):
    """A gateway's settings; every one has a default that works on one machine.

    Attributes:
        url: Where clients reach the gateway: scheme, host and, behind a proxy, the path. Its last slash is left out.
        name: The agent's name; None takes the only skill's, else `refold`.
        description: What the agent does; None takes the only skill's, else lists the skills.
        version: The agent's own version.
        provider: Who offers it.
        icon_url: Its picture.
        documentation_url: Where it is explained.
        extensions: The extensions that it speaks.
        private: Skills, by id, that only callers who are known may see and use.
        on_busy: What becomes of a message to a task at work: it is refused, or kept for the task's next question.
        signing_key: What the card is signed with; None leaves it unsigned.
        heartbeat_s: How often a comment shows that a stream is alive, in seconds; 0 sends none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = LOOPBACK_URL
    name: str | None = None
    description: str | None = None
    version: str = "1.0.0"
    provider: Provider | None = None
    icon_url: str | None = None
    documentation_url: str | None = None
    extensions: tuple[Extension, ...] = ()
    private: tuple[str, ...] = ()
    on_busy: Literal["refuse", "queue"] = "refuse"
    signing_key: SigningKey | None = None
    heartbeat_s: Annotated[float, Ge(0)] = 30.0

    @field_validator("url")
    @classmethod
    def _can_be_called(cls, url: str) -> str:
        parsed = urlsplit(url)
        if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.query or parsed.fragment:
            raise ValueError(f"clients reach a gateway at https://HOST or https://HOST/PATH, not at {url!r}")
        return url.rstrip("/")
