"""Settings of a gateway: its name, its address, and its behaviour."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, field_validator

from refold.a2a.card.signing import SigningKey
from refold.core.events import Early
from refold.engine import ON_BUSY

TIMELINE = "urn:refold:a2a:timeline:1"
"""The extension by which callers see a task's past; docs/a2a.md describes it."""

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
        on_busy: Whether a message to a running task is refused, held for the task's next question, or interrupts a
            step with `on_interrupt`; where there is none, the task holds it.
        direct: Ids of skills that answer with a message instead of a task, if they complete without a question.
        signing_keys: They sign the cards, each once; none leaves them unsigned. The gateway serves the public keys.
        serves_0_3: Whether clients of 0.3 are served beside those of 1.0.
        grpc_url: The address for clients over gRPC, `HOST:PORT`; None leaves gRPC off the card.
        timeline: What callers may ask to see of a task's past: nothing, its statuses, or its journal with the names of
            steps, tools and models.
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
    on_busy: Literal["refuse", "queue", "interrupt"] = "refuse"
    direct: tuple[str, ...] = ()
    signing_keys: tuple[SigningKey, ...] = ()
    serves_0_3: bool = True
    grpc_url: str | None = None
    timeline: Literal["none", "status", "journal"] = "none"
    heartbeat_s: Annotated[float, Ge(0)] = 30.0

    @field_validator("url")
    @classmethod
    def _can_be_called(cls, url: str) -> str:
        parsed = urlsplit(url)
        if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.query or parsed.fragment:
            raise ValueError(f"clients reach a gateway at https://HOST or https://HOST/PATH, not at {url!r}")
        return url.rstrip("/")

    @property
    def early(self) -> Early:
        """`on_busy`, as a message says it to its task."""
        return ON_BUSY[self.on_busy]

    @property
    def declared_extensions(self) -> tuple[Extension, ...]:
        """The extensions on the card: those of the application, and the timeline where it is offered."""
        if self.timeline == "none":
            return self.extensions
        return (*self.extensions, Extension(uri=TIMELINE, description=f"The task's past: {self.timeline}."))
