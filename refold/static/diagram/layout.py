"""Lays a skill's diagram out in layers, from its start down to its ends, for whoever draws it.

Moves that lead back are left out of the layering and drawn at the side. Positions are whole numbers, in pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

from refold.core.authoring.skill import Skill
from refold.static.diagram.graph import ANY, END, START, diagram_of, nodes_of

CHAR, LINE = 7, 17
"""The width of a letter and the height of a line."""

PAD, GAP_X, GAP_Y = 12, 48, 74
LONGEST = 34
"""How many letters of a line are drawn; the whole is in its title."""

MOST_LINES = 5
SWEEPS = 6
DOT = 16
LANE = 22
BEGIN, FINISH = "(start)", "(end)"
Move: TypeAlias = tuple[str, str]
"""From which step or state to which; the first comes from `BEGIN`, the last goes to `FINISH`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A state or step.

    Attributes:
        name: Its name; empty for the dots of the start and the end.
        lines: What else is written in it.
        x, y: Its upper left corner.
    """

    name: str
    kind: str
    lines: tuple[str, ...]
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A move.

    Attributes:
        path: Its line, as SVG's `d`.
        labels: What is written beside it.
        full: The same, not shortened.
        x, y: Where the first label begins.
        taken: How often tasks took it; the first label says so, too.
    """

    source: str
    target: str
    path: str
    labels: tuple[str, ...]
    full: str
    x: int
    y: int
    taken: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A diagram with the place of everything."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def drawn(skill: Skill, taken: Mapping[Move, int] = MappingProxyType({})) -> Drawing:
    """A skill's diagram, laid out. No code of the skill runs.

    Args:
        skill: The skill.
        taken: How often tasks took which move, between places as `Skill.where` names them. A move that the skill's code
            does not name, as one that fails or goes where a variable says, is drawn, too.
    """
    diagram = diagram_of(skill)
    moves: dict[Move, list[str]] = {}
    for source, target, label in diagram.edges:
        ends = (BEGIN if source == START else source, FINISH if target == END else target)
        moves.setdefault(ends, []).extend([label] if label else [])
    counts = _counted(skill, moves.keys(), taken)
    for ends, times in counts.items():
        moves.setdefault(ends, []).insert(0, f"{times}×")
    nodes = {name: diagram.nodes.get(name, []) for ends in moves for name in ends}
    nodes |= {name: lines for name, lines in diagram.nodes.items() if name not in nodes}
    found = _placed(nodes, moves)
    return replace(found, arrows=tuple(replace(one, taken=counts[one.source, one.target]) for one in found.arrows))


def _counted(skill: Skill, declared: Set[Move], taken: Mapping[Move, int]) -> Counter[Move]:
    """How often each move of the diagram was taken: by the diagram's names, where they differ from the skill's own."""
    names = nodes_of(skill)
    found = Counter[Move]()
    for (source, target), times in taken.items():
        ends = (names.get(source, source), names.get(target, target))
        if ends not in declared and (ANY, ends[1]) in declared:
            ends = (ANY, ends[1])
        found[ends] += times
    return found


def _placed(nodes: Mapping[str, Iterable[str]], moves: Mapping[Move, list[str]]) -> Drawing:
    layers = _ordered(_layers(nodes, list(moves)), list(moves))
    sizes = {name: _size(name, tuple(dict.fromkeys(lines))) for name, lines in nodes.items()}
    widths = [sum(sizes[name][1] for name in layer) + GAP_X * (len(layer) - 1) for layer in layers]
    whole = max(widths, default=0) + 2 * PAD
    boxes: dict[str, Box] = {}
    y = PAD
    for layer, width in zip(layers, widths, strict=True):
        x = (whole - width) // 2
        for name in layer:
            lines, wide, high = sizes[name]
            dot = name in (BEGIN, FINISH)
            kind = {BEGIN: "begin", FINISH: "finish"}.get(name, "step")
            boxes[name] = Box(name="" if dot else name, kind=kind, lines=lines, x=x, y=y, width=wide, height=high)
            x += wide + GAP_X
        y += max(sizes[name][2] for name in layer) + GAP_Y
    depths = {name: number for number, names in enumerate(layers) for name in names}
    arrows, right = _arrows(boxes, moves, depths, whole)
    return Drawing(width=right + PAD, height=y - GAP_Y + PAD, boxes=tuple(boxes.values()), arrows=arrows)


def _size(name: str, lines: tuple[str, ...]) -> tuple[tuple[str, ...], int, int]:
    """The lines that are shown of a node, its width and its height."""
    if name in (BEGIN, FINISH):
        return (), DOT, DOT
    shown = tuple(map(_cut, lines[:MOST_LINES]))
    longest = max(len(line) for line in (name, *shown))
    return shown, longest * CHAR + 2 * PAD, (1 + len(shown)) * LINE + PAD


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _layers(nodes: Iterable[str], moves: Iterable[Move]) -> list[list[str]]:
    """Each node below all that lead to it, moves back left out."""
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in moves:
        if source != target:
            after[source].append(target)
    order, open_, done = list[str](), set[str](), set[str]()
    back: set[Move] = set()
    for root in sorted(after, key=lambda name: name != BEGIN):
        stack = [(root, iter(after[root]))] if root not in done else []
        open_.update(name for name, _ in stack)
        while stack:
            name, rest = stack[-1]
            target = next(rest, "")
            if not target:
                stack.pop()
                open_.discard(name)
                done.add(name)
                order.append(name)
            elif target in open_:
                back.add((name, target))
            elif target not in done:
                open_.add(target)
                stack.append((target, iter(after[target])))
    depth = dict.fromkeys(order, 0)
    for name in reversed(order):
        for target in after[name]:
            if (name, target) not in back:
                depth[target] = max(depth[target], depth[name] + 1)
    if FINISH in depth:
        depth[FINISH] = max(depth.values()) if depth[FINISH] == max(depth.values()) else max(depth.values()) + 1
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in reversed(order):
        layers[depth[name]].append(name)
    return [layer for layer in layers if layer]


def _ordered(layers: list[list[str]], moves: Iterable[Move]) -> list[list[str]]:
    """The layers with neighbours near each other: each node goes to the middle of those that it is joined to."""
    joined: dict[str, list[str]] = {}
    for source, target in moves:
        joined.setdefault(source, []).append(target)
        joined.setdefault(target, []).append(source)
    for sweep in range(SWEEPS):
        steps = pairwise(range(len(layers)) if sweep % 2 == 0 else reversed(range(len(layers))))
        for fixed, moved in steps:
            place = {name: index / max(1, len(layers[fixed]) - 1) for index, name in enumerate(layers[fixed])}
            near = {name: [place[one] for one in joined.get(name, ()) if one in place] for name in layers[moved]}
            layers[moved].sort(key=lambda name: sum(near[name]) / len(near[name]) if near[name] else 0.5)
    return layers


def _arrows(
    boxes: Mapping[str, Box], moves: Mapping[Move, list[str]], layer: Mapping[str, int], right: int
) -> tuple[tuple[Arrow, ...], int]:
    """The moves, and how far the drawing reaches to the right with them.

    A move to the next layer is a line; any other goes around the right side, each in a lane of its own.
    """
    found: list[Arrow] = []
    near = {ends: labels for ends, labels in moves.items() if layer[ends[1]] == layer[ends[0]] + 1}
    for (source, target), labels in near.items():
        arrow = _down(boxes[source], boxes[target], source, target, labels)
        right = max(right, arrow.x + _wide(arrow.labels))
        found.append(arrow)
    for (source, target), labels in moves.items():
        if (source, target) not in near:
            right += LANE
            arrow = _around(boxes[source], boxes[target], source, target, labels, right)
            right = arrow.x + _wide(arrow.labels)
            found.append(arrow)
    return tuple(found), right


def _down(one: Box, other: Box, source: str, target: str, labels: list[str]) -> Arrow:
    shown = tuple(map(_cut, labels[:MOST_LINES]))
    x1, y1 = one.x + one.width // 2, one.y + one.height
    x2, y2 = other.x + other.width // 2, other.y
    bend = (y2 - y1) // 2
    return Arrow(
        source=source,
        target=target,
        path=f"M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2 - 5}",
        labels=shown,
        full="; ".join(labels),
        x=(x1 * 3 + x2 * 2) // 5 + 6,
        y=(y1 + y2) // 2 - (len(shown) - 1) * LINE // 2 + 4,
    )


def _around(one: Box, other: Box, source: str, target: str, labels: list[str], lane: int) -> Arrow:
    shown = tuple(map(_cut, labels[:MOST_LINES]))
    x1, y1 = one.x + one.width, one.y + one.height // 2
    x2, y2 = other.x + other.width, other.y + other.height // 2 + (8 if one is other else 0)
    middle = (y1 + y2) // 2
    return Arrow(
        source=source,
        target=target,
        path=f"M{x1} {y1} C{lane} {y1} {lane} {y1} {lane} {middle} S{lane} {y2} {x2 + 5} {y2}",
        labels=shown,
        full="; ".join(labels),
        x=lane + 6,
        y=middle - (len(shown) - 1) * LINE // 2,
    )


def _wide(lines: Iterable[str]) -> int:
    return max((len(line) for line in lines), default=0) * CHAR
