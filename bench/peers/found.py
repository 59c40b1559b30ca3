"""What a run found: medians of its rounds, as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.peers.table import SIDES, Side

BASE = "hand-tuned"
"""The side that ratios are of, where it was measured."""

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of a run.

    Attributes:
        data: As they are recorded: `settings`, `machine`, `missing` (side to reason), `rounds` (of each, side to its
            figures), `lengths` (side to number of steps to figures).
    """

    data: dict[str, Any]

    @property
    def passed(self) -> bool:
        """A comparison has no limits."""
        return True

    def as_json(self) -> str:
        """One object on one line."""
        return json.dumps({"benchmark": "peers", "passed": self.passed, **self.data})

    def as_text(self) -> str:
        """All tables."""
        tables = (self.steps(), self.kills(), self.lengths())
        notes = [f"left out: {name}: {why}" for name, why in self.missing()]
        notes += [f"{name}: {what}" for name, what in self.repeated()]
        return "\n\n".join([*map(_columns, tables), *notes])

    def sides(self, figure: str) -> list[Side]:
        """Those that have a figure."""
        return [side for side in SIDES if self.values(side.key, figure)]

    def values(self, side: str, figure: str) -> list[float]:
        """A figure of a side, in each round."""
        return [one[side][figure] for one in self.data["rounds"] if figure in one.get(side, {})]

    def middle(self, side: str, figure: str) -> float:
        """The median of the rounds."""
        return median(self.values(side, figure))

    def per_s(self, side: str) -> float:
        """Steps a second, with many tasks at once."""
        return 1_000 / self.middle(side, "at_once.step_ms")

    def ratio(self, side: str, figure: str) -> float | None:
        """To the base, the median of the rounds' own ratios; None where the base was not measured."""
        ratios = [
            one[side][figure] / one[BASE][figure]
            for one in self.data["rounds"]
            if figure in one.get(side, {}) and figure in one.get(BASE, {})
        ]
        return median(ratios) if ratios else None

    # --- tables: each a heading and its rows

    def steps(self) -> list[Row]:
        """Time, throughput and CPU of a step."""
        at_once, sides = self.data["settings"]["at_once"], self.sides("alone.step_ms")
        head = ["", "ms a step, one task", "rounds", "ratio", f"steps a second, {at_once} tasks", "rounds", "ratio"]
        rows: list[Row] = [[*head, "CPU a step, process + server, ms"]]
        for side in sides:
            slower = self.ratio(side.key, "at_once.step_ms")
            speeds = [1_000 / value for value in self.values(side.key, "at_once.step_ms")]
            rows.append([
                side.name,
                _figure(self.middle(side.key, "alone.step_ms")),
                _spread(self.values(side.key, "alone.step_ms")),
                _ratio(self.ratio(side.key, "alone.step_ms")),
                _figure(self.per_s(side.key)),
                _spread(speeds),
                _ratio(1 / slower if slower else None),
                " + ".join(_figure(self.middle(side.key, f"at_once.{of}_cpu_ms")) for of in ("process", "server")),
            ])  # fmt: skip
        return rows

    def repeated(self) -> list[Row]:
        """Sides whose effects ran twice although nothing was killed, and how many of them did in the worst round."""
        worst = {side.name: max(self._twice(side.key), default=0) for side in SIDES}
        return [[name, f"{number:.0f} effects ran twice"] for name, number in worst.items() if number]

    def _twice(self, side: str) -> list[float]:
        turns = [one[side] for one in self.data["rounds"] if side in one]
        return [turn.get("alone.twice", 0) + turn.get("at_once.twice", 0) for turn in turns]

    def kills(self) -> list[Row]:
        """What follows a SIGKILL."""
        head = ["", "s from SIGKILL to the end", "rounds", "of them, the new process's start", "effects that ran twice"]
        rows: list[Row] = [head]
        for side in self.sides("kill.done_s"):
            done = self.values(side.key, "kill.done_s")
            twice = sorted({int(value) for value in self.values(side.key, "kill.twice")})
            row = [side.name, _figure(median(done)), _spread(done), _figure(self.middle(side.key, "kill.ready_s"))]
            rows.append([*row, "–".join(str(value) for value in dict.fromkeys((twice[0], twice[-1])))])
        return rows

    def lengths(self) -> list[Row]:
        """What tasks of several lengths keep and take."""
        lengths = [str(steps) for steps in self.data["settings"]["lengths"]]
        titles = [*(f"KiB, {steps} steps" for steps in lengths), *(f"ms a step, {steps}" for steps in lengths)]
        rows: list[Row] = [["", *titles]]
        for side in SIDES:
            if found := self.data["lengths"].get(side.key):
                kept = [_figure(found[steps]["bytes"] / 1024) for steps in lengths]
                rows.append([side.name, *kept, *(_figure(found[steps]["step_ms"]) for steps in lengths)])
        return rows

    def missing(self) -> list[Row]:
        """Sides that could not run, and why."""
        names = {side.key: side.name for side in SIDES}
        return [[names[key], why] for key, why in self.data["missing"].items()]

    def settings(self) -> list[Row]:
        """The configuration of each side."""
        fsyncs = {side.key: "" if side.fsyncs is None else f"{side.fsyncs:.1f}" for side in SIDES}
        head = ["", "configuration", "fsyncs a step"]
        return [head, *([side.name, side.settings, fsyncs[side.key]] for side in SIDES)]

    def machine(self) -> list[Row]:
        """What the run was made on."""
        of, loads = self.data["machine"], [one["load"] for each in self.data["rounds"] for one in each.values()]
        versions = ", ".join(f"{name} {version}" for name, version in of["versions"].items())
        machine = f"{of['cores']} cores ({of['processor']}), {of['memory_gib']} GiB, {of['system']}"
        started, ended = of["load_at_start"][0], of["load_at_end"][0]
        return [
            ["", ""],
            ["when", f"{of['at']}; rounds: {len(self.data['rounds'])}"],
            ["machine", machine],
            ["disk", f"an fsync of 4 KiB took {of['fsync_ms']:.2f} ms (median of 100)"],
            ["load", f"{started} at the start, {ended} at the end; {min(loads)} to {max(loads)} as the turns began"],
            ["versions", f"Python {of['python']}, {versions}"],
        ]


def markdown(rows: Sequence[Row]) -> str:
    """A table for a page."""
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _columns(rows: Sequence[Row]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *figures in rows:
        cells = [name.ljust(widths[0]), *(text.rjust(width) for text, width in zip(figures, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _figure(value: float) -> str:
    """Three digits, as more would say what is not known."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(values: Sequence[float]) -> str:
    return f"{_figure(min(values))}–{_figure(max(values))}"
