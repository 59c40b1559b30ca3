"""Figures against limits, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing measured on both sides.

    Attributes:
        name: What was measured, for people.
        key: The same for programs, unique in the report.
        unit: Of `ours` and `twin`.
        ours: refold's value, the median of the rounds.
        twin: The other side's value; mostly that of the hand-written workflow.
        ratio: `ours / twin`, the median of the rounds' own ratios, so that a slowdown of a whole round cancels out.
        limit: The highest ratio that passes; None if the figure only informs.
        ratios: Each round's ratio, in the order of the rounds.
    """

    name: str
    key: str
    unit: str
    ours: float
    twin: float
    ratio: float
    limit: float | None = None
    ratios: tuple[float, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the limit holds."""
        return self.limit is None or self.ratio <= self.limit


def figure(
    name: str, key: str, unit: str, rounds: Sequence[tuple[float, float]], *, limit: float | None = None
) -> Figure:
    """A figure from rounds of (ours, twin)."""
    ratios = tuple(ours / twin for ours, twin in rounds)
    return Figure(
        name=name,
        key=key,
        unit=unit,
        ours=median(ours for ours, _ in rounds),
        twin=median(twin for _, twin in rounds),
        ratio=median(ratios),
        limit=limit,
        ratios=ratios,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check that holds or does not.

    Attributes:
        name: What should hold, for people.
        key: The same for programs, unique in the report.
        found: What was found instead, or the figures that show it.
    """

    name: str
    key: str
    passed: bool
    found: str


@dataclass(slots=True, kw_only=True)
class Report:
    """The result of one benchmark.

    Attributes:
        benchmark: Its name.
        settings: The options of the run.
        beside: What refold is compared with.
    """

    benchmark: str
    settings: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    beside: str = "by hand"

    @property
    def passed(self) -> bool:
        """Whether every limit and every check holds."""
        return all(one.passed for one in self.figures) and all(one.passed for one in self.checks)

    def as_json(self) -> str:
        """One object on one line."""
        figures = {one.key: {**asdict(one), "passed": one.passed} for one in self.figures}
        checks = {one.key: asdict(one) for one in self.checks}
        found = {"benchmark": self.benchmark, "passed": self.passed, "settings": self.settings}
        return json.dumps({**found, "figures": figures, "checks": checks})

    def as_text(self) -> str:
        """A table, the limits in it, the checks below it."""
        width = max((len(one.name) for one in self.figures), default=0)
        lines = [f"{'':{width}}  {'refold':>9}  {self.beside:>9}  {'':6}  {'ratio':>6}  {'limit':>6}  rounds"]
        for one in self.figures:
            verdict = "" if one.limit is None else "  ok" if one.passed else "  TOO HIGH"
            limit = "" if one.limit is None else f"{one.limit:.2f}"
            spread = f"{min(one.ratios):.2f}-{max(one.ratios):.2f}" if len(one.ratios) > 1 else ""
            lines.append(
                f"{one.name:{width}}  {one.ours:9.3f}  {one.twin:9.3f}  {one.unit:6}  {one.ratio:6.3f}  {limit:>6}  "
                f"{spread:9}{verdict}".rstrip()
            )
        lines += [f"{'ok ' if one.passed else 'NOT'}  {one.name}: {one.found}" for one in self.checks]
        return "\n".join([*lines, "passed" if self.passed else "A LIMIT IS BROKEN"])
