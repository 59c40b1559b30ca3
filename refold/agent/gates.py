"""Gates before tools: whose call waits for a person, and who decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from refold.agent.tools import AgentTool
from refold.core.gates import GateKind, GatePolicy

Gates = Literal["effects", "none"] | Collection[str] | Mapping[str, GatePolicy]

TOOL_GATE = GatePolicy(kind=GateKind.RISK, on_denied="continue")
"""Anybody decides, within half an hour; a denial is told to the model."""


def gates_of(
    gates: Gates, tools: Mapping[str, AgentTool], policy: GatePolicy
) -> tuple[dict[str, GatePolicy], list[str]]:
    """The gates by tool, and what is wrong with what was said of them.

    Args:
        gates: `"effects"`: before every tool that is not declared `read_only`; `"none"`; names of tools; or policies
            by name.
        tools: The agent's.
        policy: Who decides where nothing else is said.
    """
    if gates == "none":
        return {}, []
    if gates == "effects":
        return {name: _told(policy) for name, tool in tools.items() if not tool.changes_nothing}, []
    if isinstance(gates, str):
        return {}, [f'gates={gates!r} is unknown: "effects", "none", tools\' names, or policies by name']
    named = dict(gates) if isinstance(gates, Mapping) else dict.fromkeys(gates, policy)
    unknown = [
        f"gates: there is no tool {name!r}; there are: {', '.join(tools) or 'none'}"
        for name in named
        if name not in tools
    ]
    return {name: _told(one) for name, one in named.items()}, unknown


def _told(policy: GatePolicy) -> GatePolicy:
    # The model reads a denial: it is data for it, like any other result.
    return policy.model_copy(update={"on_denied": "continue"})
