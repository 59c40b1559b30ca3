"""Draws a skill as a Mermaid state diagram: its transitions, the effects they request, and its ends.

The diagram is read from the source, so targets and names that only a variable holds are missing.
"""

from __future__ import annotations

import re

from refold.core.authoring.reducer import ReducerSkill, kind_of, members_of
from refold.core.authoring.skill import Skill
from refold.core.contracts.run import ContractedMachine
from refold.core.steps.machine import StepMachine
from refold.core.steps.spec import StepSpec
from refold.static.code.loaded import loaded_module, source_of
from refold.static.code.units import unit_of
from refold.static.diagram.gates import Gate, gate_of
from refold.static.diagram.outcomes import Outcome, Reader

# Words with a meaning of their own in Mermaid's grammar.
RESERVED = {
    "accdescr", "acctitle", "as", "choice", "class", "classdef", "click", "default", "direction", "end", "fork", "hide",
    "history", "href", "join", "note", "scale", "state", "statediagram", "style",
}  # fmt: skip
START = END = "[*]"
ANY = "any state"
ANY_EVENT = "any event"


class Diagram:
    """Nodes in the order they are first named, and edges; each once."""

    def __init__(self) -> None:
        self.nodes: dict[str, list[str]] = {}
        self.edges: dict[tuple[str, str, str], None] = {}

    def node(self, name: str, *lines: str) -> None:
        """A state or step, with lines of text below its name."""
        self.nodes.setdefault(name, []).extend(lines)

    def edge(self, source: str, target: str, label: str = "") -> None:
        """A move. The ends are names of nodes, or START or END."""
        self.edges[source, target, label] = None

    def joined(self, source: str, target: str) -> bool:
        """Whether there is such a move, whatever its label."""
        return any((source, target) == edge[:2] for edge in self.edges)

    def text(self) -> str:
        """The whole as Mermaid."""
        ends = [end for source, target, _ in self.edges for end in (source, target)]
        for name in dict.fromkeys(ends):
            if name != START:
                self.node(name)
        ids = {name: _id(name, number) for number, name in enumerate(self.nodes, 1)} | {START: START}
        lines = ["stateDiagram-v2"]
        for name, extra in self.nodes.items():
            lines.append(f'    state "{_safe(name)}" as {ids[name]}')
            lines.extend(f"    {ids[name]} : {_safe(line)}" for line in dict.fromkeys(extra))
        for source, target, label in self.edges:
            lines.append(f"    {ids[source]} --> {ids[target]}" + (f" : {_safe(label)}" if label else ""))
        return "\n".join(lines) + "\n"


def graph(skill: Skill) -> str:
    """The skill as Mermaid's `stateDiagram-v2`. No code of the skill runs.

    The label of an edge reads `event [condition] / requested effects`. An end is labelled completed, failed, rejected,
    or with the gate that was denied or timed out. A failure that the skill does not catch ends the task at any awaited
    effect, and is not drawn.
    """
    return diagram_of(skill).text()


def diagram_of(skill: Skill) -> Diagram:
    """The skill's states or steps, and the moves between them; see `graph`."""
    diagram = Diagram()
    match skill:
        case StepMachine():
            diagram.edge(START, skill.start.name, "message")
            if isinstance(skill, ContractedMachine):
                _contract(skill, diagram)
            _steps(skill, diagram)
        case ReducerSkill():
            _reducer(skill, diagram)
        case _:
            for source, target in skill.edges():
                diagram.edge(source, target)
    return diagram


def _steps(machine: StepMachine, diagram: Diagram) -> None:
    reader = Reader(loaded_module)
    for name, spec in machine.steps.items():
        found = source_of(spec.run)
        unit = None if found is None else unit_of(*found)
        diagram.node(name, *([] if unit is None else reader.asked(unit)))
        for outcome in [] if unit is None else reader.outcomes(unit):
            _outcome(machine, spec, outcome, diagram)
        for gate in [] if unit is None else reader.gates(unit):
            _gate_ends(name, gate, diagram)
    for made in machine.made_with:
        diagram.node(made.step, f"{made.kind} {made.name}")
        if made.gate is not None:
            diagram.node(made.step, f"gate {made.name}")
            _gate_ends(made.step, gate_of(made.name, made.gate), diagram)
    for source, target in machine.edges():
        if not diagram.joined(source, target):
            met = machine.resumes.get(source)
            label = "message" if machine.steps[source].on_interrupt == target else "goto"
            diagram.edge(source, target, "answer" if met is not None and met.name == target else label)


def _outcome(machine: StepMachine, step: StepSpec, outcome: Outcome, diagram: Diagram) -> None:
    """The edges of one way out of a step."""
    if outcome.ending:
        if not step.contract.exits:  # else its legal moves say where it ends
            diagram.edge(step.name, END, _label(outcome, ending=outcome.ending))
    elif outcome.gate is not None or outcome.question:
        if (met := machine.resumes.get(step.name)) is not None:
            came = f"answer to {outcome.question}" if outcome.gate is None else f"{outcome.gate.slot} approved"
            diagram.edge(step.name, met.name, _label(outcome, came, asks=False))
            if outcome.gate is not None:
                _gate_ends(step.name, outcome.gate, diagram, met.name)
    elif outcome.target in machine.steps and not (step.contract.exits and diagram.joined(step.name, outcome.target)):
        diagram.edge(step.name, outcome.target, _label(outcome, "goto"))  # a legal move is drawn already


def _gate_ends(source: str, gate: Gate, diagram: Diagram, met: str = "") -> None:
    """The edges for a gate's denial and timeout: to the task's end, or to the step that receives the decision."""
    ways = [("denied", gate.denial_ends), *([("timeout", gate.timeout_ends)] if gate.times_out else [])]
    for way, ends in ways:
        if ends or met:
            diagram.edge(source, END if ends else met, f"{gate.slot} {way}")


def _contract(machine: ContractedMachine, diagram: Diagram) -> None:
    """Each step's reads and writes, and its legal moves, each labelled with the state that it leads to."""
    lifecycle = machine.validator.lifecycle
    for name, step in machine.steps.items():
        terms = step.contract
        diagram.node(
            name,
            *([f"in {terms.enters}"] if terms.enters else []),
            f"reads {'all' if terms.reads == machine.validator.fields else ', '.join(terms.reads) or 'nothing'}",
            f"writes {', '.join(terms.writes) or 'nothing'}",
            *(["makes any move"] if terms.free else []),
        )
        for target in terms.exits if terms.enters or terms.on_error else ():
            if target in machine.routes.by_state:
                diagram.edge(name, machine.routes.by_state[target].name, f"move to {target}")
            elif target != lifecycle.failed:
                diagram.edge(name, END, f"move to {target} / completed")
            elif machine.handler is not None and not terms.on_error:
                diagram.edge(name, machine.handler.name, "failure")
            else:
                diagram.edge(name, END, "failed")


def _reducer(skill: ReducerSkill, diagram: Diagram) -> None:
    kinds = [getattr(kind, "__name__", str(kind)) for kind in members_of(skill.annotation)]
    for kind in kinds:
        diagram.node(kind)
    diagram.edge(START, type(skill.author.initial()).__name__, "start")
    found = source_of(skill.author.on_event)
    if found is None:
        return
    ended: dict[str, str] = {}
    for outcome in Reader(loaded_module, frozenset(kinds)).outcomes(unit_of(*found)):
        for source in outcome.case.states or (ANY if len(kinds) > 1 else kinds[0],):
            if outcome.ending and outcome.target:
                diagram.edge(source, outcome.target, _label(outcome, ANY_EVENT))
                ended[outcome.target] = outcome.ending
            elif outcome.ending:
                diagram.edge(source, END, _label(outcome, ending=outcome.ending))
            elif outcome.target or outcome.asks:
                diagram.edge(source, outcome.target or source, _label(outcome, ANY_EVENT))
            if outcome.gate is not None:
                _gate_ends(outcome.target or source, outcome.gate, diagram)
    for state, ending in ended.items():
        diagram.edge(state, END, ending)


def nodes_of(skill: Skill) -> dict[str, str]:
    """What the diagram calls the states that a reducer gives another name by their `kind`; empty for other styles."""
    kinds = members_of(skill.annotation) if isinstance(skill, ReducerSkill) else []
    return {kind_of(kind): kind.__name__ for kind in kinds}


def _label(outcome: Outcome, came: str = "", *, ending: str = "", asks: bool = True) -> str:
    """`llm critique [NeedsRevision] / llm research`.

    Args:
        outcome: The outcome.
        came: The event, if the code does not name it by a `match` or an `except`.
        ending: How the task ends.
        asks: Whether to add the requested effects.
    """
    guard = f"[{outcome.case.guard}]" if outcome.case.guard else ""
    before = " ".join(filter(None, (outcome.case.trigger or came or ending, guard)))
    after = ", ".join([*(outcome.asks if asks else ()), *([ending] if ending and outcome.case.trigger else [])])
    return f"{before} / {after}" if before and after else before or after


def _id(name: str, number: int) -> str:
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and name.lower() not in RESERVED
    return name if plain else f"node_{number}"


def _safe(text: str) -> str:
    """Text that Mermaid takes as it stands: no quotes, colons, semicolons, or marks of its own."""
    return re.sub(r"\s+", " ", re.sub(r"[^\w\s\[\]/,.()?!+-]", " ", text)).strip() or "-"
