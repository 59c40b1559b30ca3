"""Gates before tools: which calls wait for a person, and who decides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from refold.agent.tools import AgentTool, names_remote
from refold.core.gates import GateKind, GatePolicy

Gates = Literal["effects", "none"] | Collection[str] | Mapping[str, GatePolicy]

TOOL_GATE = GatePolicy(kind=GateKind.RISK, on_denied="continue")
"""Anyone may decide, within half an hour; the model receives a denial as the call's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGates:
    """Which calls wait for a person.

    Attributes:
        by_effect: The policy for every tool that is not declared `read_only`; None opens no gate for them.
        named: Policies for single tools.
    """

    by_effect: GatePolicy | None = None
    named: Mapping[str, GatePolicy]

    def before(self, tool: AgentTool) -> GatePolicy | None:
        """The policy for calls of this tool; None if they need no decision."""
        server, dot, _ = tool.name.partition(".")
        policy = self.named.get(tool.name) or (self.named.get(f"{server}.*") if dot else None)
        if policy is None and not tool.changes_nothing:
            policy = self.by_effect
        # The model reads a denial as data, like any other result.
        return None if policy is None else policy.model_copy(update={"on_denied": "continue"})


NO_GATES = ToolGates(named={})


def gates_of(
    gates: Gates, known: Iterable[str], remote: Collection[str], policy: GatePolicy
) -> tuple[ToolGates, list[str]]:
    """The gates, and the mistakes in their definition.

    Args:
        gates: `"effects"`: before every tool that is not declared `read_only`; `"none"`; names of tools; or policies by
            name.
        known: The names of the agent's tools.
        remote: Tools of servers, `server.tool` or `server.*`; which ones exist is known when a task begins.
        policy: Who decides, if `gates` names no policy.
    """
    if gates == "none":
        return NO_GATES, []
    if gates == "effects":
        return ToolGates(by_effect=policy, named={}), []
    if isinstance(gates, str) or not isinstance(gates, Iterable):
        return NO_GATES, [f'gates={gates!r} is unknown: "effects", "none", tools\' names, or policies by name']
    named = dict(gates) if isinstance(gates, Mapping) else dict.fromkeys(gates, policy)
    names = list(known)
    problems = [
        f"gates: there is no tool {name!r}; there are: {', '.join([*names, *remote]) or 'none'}"
        for name in named
        if name not in names and not _opens(name, remote)
    ]
    problems += [
        f"gates: {name!r} has {one!r}; it is a GatePolicy"
        for name, one in named.items()
        if not isinstance(one, GatePolicy)
    ]
    return ToolGates(named=named), problems


def _opens(name: str, remote: Collection[str]) -> bool:
    """Whether a gate of this name would come before a tool of a server that the agent has, or may have."""
    if not names_remote(name):
        return False
    server = name.partition(".")[0]
    same = [one for one in remote if one.partition(".")[0] == server]
    return name in same or (bool(same) and f"{server}.*" in (name, *same))
