"""Which step comes after which: a loop with loops in it, laid out as a row of places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refold.agent.looping.slots import Node, Repeat, outcomes_of
from refold.agent.state import AgentState, StepStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A loop.

    Attributes:
        name: Its name; empty for the agent's own, whose passes are the state's cycles.
        first: Its first place.
        after: The place after it in the loop around it; None if it is the last there.
        max_cycles: The most passes.
    """

    name: str
    first: str
    after: str | None
    max_cycles: int

    def passes(self, state: AgentState) -> int:
        """How many passes have begun."""
        return state.passes.get(self.name, 0) if self.name else state.cycle

    def count(self, state: AgentState, passes: int) -> None:
        """A pass begins."""
        if self.name:
            state.passes[self.name] = passes
        else:
            state.cycle = passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A slot that is a step of the skill.

    Attributes:
        node: The slot.
        loops: The loops around it, the outermost first.
        next: The place after it in its loop; None if it is the last there.
    """

    node: Node
    loops: tuple[Bounds, ...]
    next: str | None

    @property
    def leads_to(self) -> tuple[str, ...]:
        """The steps that may come next."""
        found: list[str] = []
        for status in outcomes_of(self.node.slot):
            if status is StepStatus.DONE and self.next is not None:
                found.append(self.next)
                continue
            if status is not StepStatus.ANSWERED and self.loops[-1].max_cycles > 1:
                found.append(self.loops[-1].first)
            found += self._beyond(answered=status is StepStatus.ANSWERED)
        return tuple(dict.fromkeys(found))

    def _beyond(self, *, answered: bool) -> list[str]:
        """The step after the innermost loop; the agent's own loop leads to the answer, or fails the task."""
        for bounds in reversed(self.loops[1:]):
            if bounds.after is not None:
                return [bounds.after]
        if len(self.loops) > 1:
            return [self.loops[0].first]
        return ["answer"] if answered else []

    def is_final(self, state: AgentState) -> bool:
        """Whether this is the last pass of its loop."""
        return self.loops[-1].passes(state) >= self.loops[-1].max_cycles

    def begin(self, state: AgentState, *, since: int) -> None:
        """The first pass of each loop around it begins, from the loop at this level on."""
        for bounds in self.loops[since:]:
            bounds.count(state, 1)

    def after(self, status: StepStatus, state: AgentState, places: Mapping[str, Place]) -> str | None:
        """Count the passes that begin, and name the place that comes after this one has ended with this status.

        Returns:
            None if the agent's loop is over: a slot has answered, or all passes were made.
        """
        to = self.next if status is StepStatus.DONE else None
        for level in range(len(self.loops) - 1, -1, -1):
            bounds = self.loops[level]
            if to is not None:
                return self._go(to, level + 1, state, places)
            if status is not StepStatus.ANSWERED and bounds.passes(state) < bounds.max_cycles:
                bounds.count(state, bounds.passes(state) + 1)
                gone = {place.node.name for place in places.values() if bounds in place.loops}
                state.steps = {name: how for name, how in state.steps.items() if name.partition(".")[0] not in gone}
                return self._go(bounds.first, level + 1, state, places)
            to, status = bounds.after, StepStatus.DONE
        return None

    def _go(self, to: str, known: int, state: AgentState, places: Mapping[str, Place]) -> str:
        """Go to a place; the loops around it from level `known` on are entered anew."""
        places[to].begin(state, since=known)
        return to


def placed(nodes: Sequence[Node], max_cycles: int) -> dict[str, Place]:
    """The places of a loop, by name, in their order.

    Args:
        nodes: Its slots.
        max_cycles: The most passes.
    """
    return {place.node.name: place for place in _placed(nodes, (), None, "", max_cycles)}


def _placed(
    nodes: Sequence[Node], around: tuple[Bounds, ...], after: str | None, name: str, max_cycles: int
) -> list[Place]:
    loops = (*around, Bounds(name=name, first=_first(nodes[0]), after=after, max_cycles=max_cycles))
    places: list[Place] = []
    for number, node in enumerate(nodes):
        following = _first(nodes[number + 1]) if number + 1 < len(nodes) else None
        if isinstance(node.slot, Repeat):
            places += _placed(node.inner, loops, following, node.name, node.slot.max_cycles)
        else:
            places.append(Place(node=node, loops=loops, next=following))
    return places


def _first(node: Node) -> str:
    return _first(node.inner[0]) if isinstance(node.slot, Repeat) else node.name
