"""Settings of a gateway: its name, its address, and its behaviour."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, field_validator

from refold.a2a.card.signing import SigningKey

LOOPBACK_URL = "http://127.0.0.1:9000"


class Provider(BaseModel):
    """The organization that provides the agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    organization: str
    url: str


class Extension(BaseModel):
    """An extension of the protocol that the agent supports.

    Attributes:
        uri: Its name.
        description: Its purpose.
        required: Callers that do not name it in `A2A-Extensions` are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    description: str = ""
    required: bool = False


class Settings(BaseModel):
    """A gateway's settings; the defaults work on one machine.

    Attributes:
        url: The address for clients: scheme, host and, behind a proxy, the path. A trailing slash is dropped.
        name: The agent's name; None takes the only skill's, else `refold`.
        description: The agent's description; None takes the only skill's, else lists the skills.
        version: The agent's own version.
        provider: The organization that provides it.
        icon_url: Its picture.
        documentation_url: Its documentation.
        extensions: The extensions that it supports.
        private: Ids of skills that only authenticated callers may see and use.
        on_busy: Whether a message to a running task is refused, or held for the task's next question.
        signing_key: Signs the card; None leaves it unsigned.
        heartbeat_s: Seconds between comments that keep a stream alive; 0 sends none.
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
