"""MCP servers: their configuration, and the effect policies of their tools.

The tool `search` of the server `shop` has the name `shop.search`; `shop.tools/list` returns the definitions of all the
server's tools. A server describes its tools itself, so its description counts only if the operator marks the server as
trusted. The tools of other servers are `at_most_once`, and need a person's approval if the skill gates effects.

A definition is *pinned* by its hash: `shop.search@5f0c…` is the tool as defined when the task first listed it. If the
server has changed the definition since, the worker refuses the call: a changed description could mislead a model into
calls that no person agreed to.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import Gt, Le
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from refold.core.commands import EffectPolicy
from refold.core.errors import DefinitionError
from refold.core.pins import PIN_CHARS, pinned
from refold.core.schema import problems
from refold.core.values import LONGEST_CALL_S, Value, lean

ENV = "REFOLD_MCP"
"""The environment variable that names the file of servers."""

LIST = "tools/list"
"""The name that lists a server's tools, `SERVER.tools/list`; MCP's own name of the request."""

_VARIABLE = re.compile(r"\$\{([^}]*)\}")

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")


class McpServer(BaseModel):
    """An MCP server: a program that speaks MCP on its stdin and stdout, or the URL of one that speaks it over HTTP.

    Attributes:
        name: The prefix of the tools' names.
        command: The program.
        args: The program's arguments.
        env: Environment variables added to the few that the program inherits (`PATH`, `HOME` and the like).
        cwd: The program's working folder.
        url: The server's URL, for example `https://example.com/mcp`.
        headers: Headers of each request, for example `{"Authorization": "Bearer …"}`. Whitespace around a value, as the
            line end of a file that holds a secret, is left out; a value of other than printable ASCII is refused.
        trusted: Accept the server's hints about which tools are read-only and which are idempotent.
        timeout_s: The time limit of one request, and of all pages of the list of tools together, in seconds; at most
            `LONGEST_CALL_S`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    command: Annotated[str, Field(min_length=1)] | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    cwd: Path | None = None
    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    trusted: bool = False
    timeout_s: Annotated[float, Gt(0), Le(LONGEST_CALL_S)] = 60.0

    @field_validator("headers")
    @classmethod
    def _as_sent(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        # The HTTP client would refuse them only in a call, and quote the value.
        given = {name: value.strip() for name, value in headers.items()}
        for name, value in given.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a header: letters, digits and hyphens are expected")
            if not _HEADER_VALUE.fullmatch(value):
                raise ValueError(
                    f"the value of {name!r} has a line end, another control character or one that is not ASCII within "
                    "it, which no header can carry; give it in one line of printable ASCII"
                )
        return given

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
        description: The description for the model.
        parameters: The JSON schema of the arguments.
        effect: The tool's effect policy.
        vouched_for: The operator marked the server as trusted.
        pin: The hash of description and parameters, and of the fact that it only reads.
    """

    name: str
    description: str = lean("")
    parameters: dict[str, JsonValue]
    effect: EffectPolicy
    vouched_for: bool = lean(False)
    pin: str

    @property
    def pinned(self) -> str:
        """The pinned name, `server.tool@pin`, which calls the tool only if its definition is unchanged."""
        return pinned(self.name, self.pin)

    @property
    def only_reads(self) -> bool:
        """Whether it has no effect, so that nobody need be asked about its calls."""
        return self.effect is EffectPolicy.READ_ONLY

    def fits(self, pin: str) -> bool:
        """Whether a task that has this pin may call it: nothing has changed, or it only reads now."""
        return pin in ("", self.pin, pin_of(self.description, self.parameters))


def pin_of(description: str, parameters: Mapping[str, JsonValue], *, only_reads: bool = False) -> str:
    """The hash of a definition: 64 bits of SHA-256, in hex."""
    told = [description, parameters, *([EffectPolicy.READ_ONLY] if only_reads else [])]
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:PIN_CHARS]


def effect_of(*, trusted: bool, read_only: bool | None, idempotent: bool | None) -> EffectPolicy:
    """The effect policy of a tool.

    Args:
        trusted: The operator marked the server as trusted; otherwise the hints do not count.
        read_only: The server's hint that the tool changes nothing.
        idempotent: The server's hint that repeating a call changes nothing more.
    """
    if trusted and read_only:
        return EffectPolicy.READ_ONLY
    return EffectPolicy.AT_LEAST_ONCE if trusted and idempotent else EffectPolicy.AT_MOST_ONCE


def servers_from_env() -> tuple[McpServer, ...]:
    """The servers in the file that `REFOLD_MCP` names; empty if it is not set.

    Raises:
        DefinitionError: As `servers_in`.
    """
    path = os.environ.get(ENV)
    return servers_in(Path(path)) if path else ()


def servers_in(path: Path) -> tuple[McpServer, ...]:
    """The servers of a file in the format of other MCP clients: `{"mcpServers": {"shop": {"command": "shop-mcp"}}}`.

    Each server has `command`, `args`, `env` and `cwd`, or `url` and `headers`; and `trusted` and `timeout_s`. `${NAME}`
    in a text is replaced by an environment variable, so that the file needs no secrets.

    Raises:
        DefinitionError: The file cannot be read, or a server's entry is wrong.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DefinitionError(str(path), [f"it cannot be read: {error}"], what="file of MCP servers") from None
    listed = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(one, dict) for one in listed.values()):
        raise DefinitionError(
            str(path), ['it holds no servers: {"mcpServers": {NAME: {…}}} is expected'], what="file of MCP servers"
        )
    return tuple(_server(path, name, fields) for name, fields in listed.items())


def _server(path: Path, name: str, fields: dict[str, Any]) -> McpServer:
    # Other clients add a `type`, the transport, which `command` or `url` implies.
    fields = {key: value for key, value in fields.items() if key != "type"}
    try:
        return McpServer.model_validate({**_filled_in(fields, ()), "name": name})
    except ValidationError as error:
        found = problems(error)
    except LookupError as error:
        found = error.args[0]
    raise DefinitionError(f"{name} ({path})", [found], what="MCP server")


def _filled_in(value: Any, at: tuple[str, ...]) -> Any:
    """A value of a server's entry with the environment's variables in its texts.

    Raises:
        LookupError: A text names none, or one that is not set.
    """
    match value:
        case str():
            return _VARIABLE.sub(lambda found: _variable(found[1], ".".join(at)), value)
        case list():
            return [_filled_in(one, (*at, str(index))) for index, one in enumerate(value)]
        case dict():
            return {key: _filled_in(one, (*at, key)) for key, one in value.items()}
        case _:
            return value


def _variable(name: str, at: str) -> str:
    if not name.strip():
        raise LookupError(f"{at}: ${{{name}}} names no variable; write ${{NAME}} for the environment variable NAME")
    try:
        return os.environ[name]
    except LookupError:
        raise LookupError(f"{at}: the environment has no {name}; set it where the worker starts") from None
