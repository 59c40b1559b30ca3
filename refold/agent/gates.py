"""Gates before tools: whose call waits for a person, and who decides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from refold.agent.tools import AgentTool
from refold.core.gates import GateKind, GatePolicy

Gates = Literal["effects", "none"] | Collection[str] | Mapping[str, GatePolicy]

TOOL_GATE = GatePolicy(kind=GateKind.RISK, on_denied="continue")
"""Anybody decides, within half an hour; a denial is told to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGates:
    """Which calls wait for a person.

    Attributes:
        by_effect: Those of every tool that is not declared to change nothing, by this policy; None is none.
        named: Those of these tools, by their policies.
    """

    by_effect: GatePolicy | None = None
    named: Mapping[str, GatePolicy]

    def before(self, tool: AgentTool) -> GatePolicy | None:
        """Who decides on calls of this tool; None where nobody needs to."""
        server, dot, _ = tool.name.partition(".")
        policy = self.named.get(tool.name) or (self.named.get(f"{server}.*") if dot else None)
        if policy is None and not tool.changes_nothing:
            policy = self.by_effect
        # The model reads a denial: it is data for it, like any other result.
        return None if policy is None else policy.model_copy(update={"on_denied": "continue"})


NO_GATES = ToolGates(named={})


def gates_of(
    gates: Gates, known: Iterable[str], remote: Collection[str], policy: GatePolicy
) -> tuple[ToolGates, list[str]]:
    """The gates, and what is wrong with what was said of them.

    Args:
        gates: `"effects"`: before every tool that is not declared `read_only`; `"none"`; names of tools; or policies
            by name.
        known: The names of the agent's tools.
        remote: Those of servers, `server.tool` or `server.*`; which there are is known when a task begins.
        policy: Who decides where nothing else is said.
    """
    if gates == "none":
        return NO_GATES, []
    if gates == "effects":
        return ToolGates(by_effect=policy, named={}), []
    if isinstance(gates, str):
        return NO_GATES, [f'gates={gates!r} is unknown: "effects", "none", tools\' names, or policies by name']
    named = dict(gates) if isinstance(gates, Mapping) else dict.fromkeys(gates, policy)
    names = list(known)
    servers = {name.partition(".")[0] for name in remote}
    problems = [
        f"gates: there is no tool {name!r}; there are: {', '.join([*names, *remote]) or 'none'}"
        for name in named
        if name not in names and name.partition(".")[0] not in servers
    ]
    problems += [
        f"gates: {name!r} has {one!r}; it is a GatePolicy"
        for name, one in named.items()
        if not isinstance(one, GatePolicy)
    ]
    return ToolGates(named=named), problems
