"""The outcomes of a gate, as far as the code gives the gate's policy literally."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from refold.core.gates import GatePolicy
from refold.static.code.evaluated import UNKNOWN, value_of
from refold.static.code.units import Unit, code_of


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate.

    Attributes:
        slot: The gate's name.
        denial_ends: A denial fails the task; otherwise the skill receives it.
        timeout_ends: A timeout fails the task; otherwise the skill receives it.
        times_out: The gate has a timeout.
    """

    slot: str
    denial_ends: bool = True
    timeout_ends: bool = True
    times_out: bool = True


def gate_of(slot: str, policy: GatePolicy) -> Gate:
    """A gate whose policy is known."""
    return Gate(slot, policy.on_denied == "fail", policy.on_timeout == "fail", policy.timeout_s is not None)


def gate_in(slot: str, call: ast.Call, unit: Unit) -> Gate:
    """The gate of a call. Settings that the policy does not give literally count as the default."""
    given = next((one.value for one in call.keywords if one.arg == "policy"), None)
    if isinstance(given, ast.Name):
        assigned = [
            node.value
            for node in code_of(unit.node)
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [given.id]
        ]
        given = assigned[-1] if assigned else given
    value = UNKNOWN if given is None else value_of(given, unit)
    if isinstance(value, GatePolicy):
        return gate_of(slot, value)
    said = {one.arg: value_of(one.value, unit) for one in given.keywords} if isinstance(given, ast.Call) else {}
    denial_ends, timeout_ends = (said.get(name) != "continue" for name in ("on_denied", "on_timeout"))
    return Gate(slot, denial_ends, timeout_ends, said.get("timeout_s", UNKNOWN) is not None)
