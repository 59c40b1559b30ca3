"""MCP servers: which ones a worker uses, and what may happen with their tools.

A tool of the server `shop` is called by the name `shop.search`; `shop.tools/list` answers with the definitions of all
of them. A server says itself what its tools do, so nobody but the operator can vouch for it: its tools are
`at_most_once`, and wait for a person wherever a skill has gates for effects, until the operator marks it trusted.

A definition is *pinned* by its hash: `shop.search@5f0c…` is that tool as it was defined when the task first saw it.
Where the server defines it otherwise by now, the call is refused, since a description that changes is how a server
would talk a model into what nobody has agreed to.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import Gt
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from refold.core.commands import EffectPolicy
from refold.core.errors import DefinitionError
from refold.core.schema import problems
from refold.core.values import Value, lean

ENV = "REFOLD_MCP"
"""The file of servers, where none is given."""

LIST = "tools/list"
"""The name, within a server, that answers with its tools. It is MCP's own name of that request."""

PIN_CHARS = 16

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class McpServer(BaseModel):
    """A server: a command that speaks MCP on its stdin and stdout, or the address of one that speaks it over HTTP.

    Attributes:
        name: What its tools' names begin with.
        command: The program.
        args: Its arguments.
        env: Environment added to the few variables that it inherits (`PATH`, `HOME` and the like).
        cwd: The folder it runs in.
        url: The address, for example `https://example.com/mcp`.
        headers: Sent with each request, for example `{"Authorization": "Bearer …"}`.
        trusted: What it says of its own tools is believed: which ones change nothing, and which may be repeated.
        timeout_s: How long one request may take, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    cwd: Path | None = None
    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    trusted: bool = False
    timeout_s: Annotated[float, Gt(0)] = 60.0

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has a command or a url, one of them")
        unfit = {"args", "env", "cwd"} if self.url else {"headers"}
        if found := sorted(unfit & self.model_fields_set):
            raise ValueError(f"{', '.join(found)} cannot go with {'url' if self.url else 'command'}")
        return self


class McpTool(Value):
    """A tool as its server defines it.

    Attributes:
        name: `server.tool`.
        description: For the model.
        parameters: The JSON schema of its arguments.
        effect: What may happen when the outcome of a call is not known.
        vouched_for: The operator vouches for its server.
        pin: The hash of its description and parameters.
    """

    name: str
    description: str = lean("")
    parameters: dict[str, JsonValue]
    effect: EffectPolicy
    vouched_for: bool = lean(False)
    pin: str

    @property
    def pinned(self) -> str:
        """The name that calls it as it is defined here, and not otherwise."""
        return f"{self.name}@{self.pin}"


def pin_of(description: str, parameters: Mapping[str, JsonValue]) -> str:
    """The hash of a definition: 64 bits of SHA-256, in hex."""
    text = json.dumps([description, parameters], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:PIN_CHARS]


def effect_of(*, trusted: bool, read_only: bool | None, idempotent: bool | None) -> EffectPolicy:
    """What a tool may do.

    Args:
        trusted: The operator vouches for its server.
        read_only: The server's hint that it changes nothing.
        idempotent: The server's hint that a repetition changes nothing more.
    """
    if trusted and read_only:
        return EffectPolicy.READ_ONLY
    return EffectPolicy.AT_LEAST_ONCE if trusted and idempotent else EffectPolicy.AT_MOST_ONCE


def servers_from_env() -> tuple[McpServer, ...]:
    """The servers in the file that `REFOLD_MCP` names; none where it is not set.

    Raises:
        DefinitionError: As `servers_in`.
    """
    path = os.environ.get(ENV)
    return servers_in(Path(path)) if path else ()


def servers_in(path: Path) -> tuple[McpServer, ...]:
    """The servers of a file as other MCP clients have it: `{"mcpServers": {"shop": {"command": "shop-mcp"}}}`.

    Each has `command`, `args`, `env` and `cwd`, or `url` and `headers`; and `trusted` and `timeout_s`. `${NAME}` in a
    text stands for a variable of the environment, so that the file need hold no secret.

    Raises:
        DefinitionError: It cannot be read, or a server in it is wrong.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DefinitionError(str(path), [f"it cannot be read: {error}"], what="file of MCP servers") from None
    listed = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(one, dict) for one in listed.values()):
        raise DefinitionError(
            str(path), ['it holds no servers: {"mcpServers": {NAME: {…}}} is expected'], what="file of MCP servers"
        )
    return tuple(_server(path, name, fields) for name, fields in listed.items())


def _server(path: Path, name: str, fields: dict[str, Any]) -> McpServer:
    # Other clients say how a server is reached, which its other fields show.
    fields = {key: value for key, value in fields.items() if key != "type"}
    try:
        return McpServer.model_validate({**_filled_in(fields), "name": name})
    except ValidationError as error:
        found = problems(error)
    except LookupError as error:
        found = f"the environment has no {error.args[0]}"
    raise DefinitionError(f"{name} ({path})", [found], what="MCP server")


def _filled_in(value: Any) -> Any:
    match value:
        case str():
            return _VARIABLE.sub(lambda found: os.environ[found[1]], value)
        case list():
            return [_filled_in(one) for one in value]
        case dict():
            return {key: _filled_in(one) for key, one in value.items()}
        case _:
            return value
