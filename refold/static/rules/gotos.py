"""The rule about gotos: the target step exists, and the carried values fit its parameters.

The rule uses the compiled skill and encodes literals as a running task would, so each finding would fail there too.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Collection, Iterator

from refold.core.authoring.context import Ctx
from refold.core.contracts.run import ContractedMachine
from refold.core.errors import SkillError
from refold.core.steps.machine import StepMachine
from refold.core.steps.params import Source
from refold.core.steps.spec import StepSpec
from refold.static.code.asked import CHAINED, Asked, asked_in
from refold.static.code.evaluated import UNKNOWN, is_plain, value_of
from refold.static.code.loaded import source_of
from refold.static.code.module import FunctionNode, Reach
from refold.static.code.units import Unit, reached, unit_of
from refold.static.finding import Finding
from refold.static.rules.purity import finding

ASKS = {
    ask.__name__: {one.name for one in inspect.signature(ask).parameters.values() if one.kind is not one.VAR_KEYWORD}
    for ask in (Ctx.await_input, Ctx.await_approval)
}
"""The own parameters of the questions that end a step; all other arguments are carried values."""


def misdirected(machine: StepMachine, reach: Reach) -> Iterator[Finding]:
    """Findings for gotos and questions whose target is missing or does not take the carried values."""
    for step in machine.steps.values():
        found = source_of(step.run)
        for unit in [] if found is None else reached([unit_of(*found)], reach):
            for asked in asked_in(unit):
                if asked.verb == "goto":
                    yield from _goto(machine, asked)
                elif asked.verb in ASKS and asked.by == "ctx":
                    yield from _question(machine, step, asked)


def _goto(machine: StepMachine, asked: Asked) -> Iterator[Finding]:
    node = asked.argument(0)
    name = UNKNOWN if node is None else value_of(node, asked.unit)
    if not isinstance(name, str):
        return
    target = machine.steps.get(name)
    if target is None:
        yield _found(asked, f"goes to {name!r}, which does not exist; the steps are: {', '.join(machine.steps)}")
        return
    fed = _fed(asked)
    yield from _carried(machine, target, asked, set(asked.named), fed, target.needs(message=False))
    if fed is not None:
        for id in sorted(fed - target.params.keys()):
            yield _found(asked, f"{_no_parameter(target, id)} for the result of the command {id!r}")


def _question(machine: StepMachine, step: StepSpec, asked: Asked) -> Iterator[Finding]:
    target = machine.resumes.get(step.name)
    if target is None:
        text = f"asks with `ctx.{asked.verb}`, but no step says resume_from={step.name!r}; no step gets the answer"
        yield _found(asked, text)
        return
    node = asked.argument(0, "slot")
    slot = UNKNOWN if node is None else value_of(node, asked.unit)
    brought = {slot} if isinstance(slot, str) else None
    names = set(asked.named) - ASKS[asked.verb]
    yield from _carried(machine, target, asked, names, brought, target.needs(message=True))
    by_decision = asked.verb == "await_approval"
    for param in target.params.values():
        if not param.needed or not param.source.from_message or param.name in names:
            continue
        if (param.source is Source.DECISION) == by_decision:
            continue
        comes = "a decision, `DecisionMade`" if by_decision else "a message, `Content`"
        yield _found(
            asked,
            f"asks, and step {target.name!r} gets {comes}: nothing fills its parameter {param.name}: {param.type_name}",
        )


def _carried(
    machine: StepMachine,
    target: StepSpec,
    asked: Asked,
    names: Collection[str],
    brought: Collection[str] | None,
    needed: list[str],
) -> Iterator[Finding]:
    """Findings for values that a step does not take, and for required parameters that are missing.

    Args:
        machine: The skill.
        target: The target step.
        asked: The call that carries the values.
        names: The names of the carried values.
        brought: The names of further values that arrive; None if the code does not name them.
        needed: The required parameters.
    """
    if names and isinstance(machine, ContractedMachine):
        text = "hands arguments on; the steps of a contract share its state: put them there with `.patch(...)`"
        yield _found(asked, text)
        return
    missing = [name for name in needed if name not in names and name not in (brought or ())]
    for name in names:
        if name not in target.params:
            meant = difflib.get_close_matches(name, missing, 1)
            missing = [one for one in missing if one not in meant]  # reported once
            hint = f"; did you mean {meant[0]!r}?" if meant else f"; it takes: {target.takes}"
            yield _found(asked, f"{_no_parameter(target, name)}{hint}")
            continue
        value = value_of(asked.named[name], asked.unit)
        param = target.params[name]
        if value is not UNKNOWN and is_plain(value) and not param.source.beside:
            try:
                param.encode(value, target.name)
            except SkillError as error:
                yield _found(asked, f"hands on what does not fit: {error}")
    if brought is None or asked.has_more:
        return
    for name in missing:
        kind = target.params[name].type_name
        way_out = f"pass it on: `ctx.{asked.verb}(..., {name}=...)`"
        yield _found(asked, f"does not give step {target.name!r} its {name}: {kind}; {way_out}")


def _no_parameter(target: StepSpec, name: str) -> str:
    return f"hands {name!r} on, and step {target.name!r} has no such parameter"


def _fed(asked: Asked) -> set[str] | None:
    """The ids of the commands chained to a goto; None if the code does not give all of them literally."""
    ids: set[str] = set()
    parents = {id(child): node for node in ast.walk(asked.unit.node) for child in ast.iter_child_nodes(node)}
    node: ast.AST = asked.node
    while True:
        match parents.get(id(node)):
            case ast.Attribute(attr=attr) as chained if attr in CHAINED:
                call = parents.get(id(chained))
                if not isinstance(call, ast.Call):
                    return None
                if attr == "cmd" and (given := _command_id(call, asked.unit)) is None:
                    return None
                elif attr == "cmd" and given:
                    ids.add(given)
                node = call
            case ast.IfExp() as parent:
                node = parent
            case ast.Return() | ast.Lambda():
                return ids
            case _:
                return None


def _command_id(call: ast.Call, unit: Unit) -> str | None:
    """The id of a chained command; empty if no step awaits the command, None if the code does not give it literally."""
    match call.args:
        case [ast.Call(func=ast.Attribute(attr="message" | "artifact"))]:
            return ""
        case [ast.Call(args=[first, *_])]:
            value = value_of(first, unit)
            return value if isinstance(value, str) else None
        case _:
            return None


def _found(asked: Asked, message: str) -> Finding:
    assert isinstance(asked.unit.node, FunctionNode | ast.Lambda)
    return finding(asked.unit, asked.node, "goto", message)
