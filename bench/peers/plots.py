"""The pictures of docs/performance.md, as SVG.

Text and axes are of a grey that can be read on white and on black, so that no picture needs to know which one it is on.
No plotting library: pygal's files are ten times as large and hold the day on which they were made, so the same figures
would give other files; and its text cannot be read on dark and on light alike where it stands on a bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

GREY, FAINT = "#767d88", "#767d8855"
OURS, OTHERS = "#d9822b", "#7d8fa3"
LINES = ("#3f7fbf", "#8e6bbf", "#2f9e6e", "#c2497a", "#a39a2b", "#4aa3a3", "#8a6d4b", "#6c7a89")
WIDTH, NAMES, ROW, PLOT, TOP = 820, 250, 26, 380, 44
"""In pixels: of a picture, of the names beside bars, of a bar, of the height of lines, and where the plot begins."""

Line = tuple[str, Sequence[tuple[float, float]]]


def is_ours(name: str) -> bool:
    """Whether a side is refold, which stands out."""
    return name.startswith("refold")


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """A bar for each, with its value.

    Args:
        rows: Names and values, from top to bottom; values above 0.
    """
    room, most = WIDTH - NAMES - 90, max(value for _, value in rows)
    drawn = []
    for number, (name, value) in enumerate(rows):
        top = TOP + number * ROW
        length = max(1.0, value / most * room)
        color = OURS if is_ours(name) else OTHERS
        drawn += [
            _text(NAMES - 8, top + 14, name, anchor="end"),
            f'<rect x="{NAMES}" y="{top}" width="{length:.1f}" height="{ROW - 7}" fill="{color}"/>',
            _text(NAMES + length + 6, top + 14, f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"),
        ]
    return _picture(title, TOP + len(rows) * ROW + 6, drawn)


def lines(title: str, across: str, series: Sequence[Line]) -> str:
    """A line for each, both axes logarithmic, named at its end.

    Args:
        across: What the horizontal axis is.
        series: Names and points; all numbers above 0.
    """
    left, right, bottom = 80, WIDTH - 230, TOP + PLOT
    xs = sorted({x for _, points in series for x, _ in points})
    tens = range(*_decades([y for _, points in series for _, y in points]))

    def at(x: float, y: float) -> tuple[float, float]:
        wide = _part(x, xs[0], xs[-1])
        return left + wide * (right - left), bottom - _part(y, 10.0 ** tens[0], 10.0 ** tens[-1]) * PLOT

    drawn = []
    for ten in tens:
        _, height = at(xs[0], 10.0**ten)
        drawn += [
            f'<path d="M{left} {height:.1f}H{right}" stroke="{FAINT}"/>',
            _text(left - 8, height + 4, f"{10.0**ten:,.0f}", anchor="end"),
        ]
    drawn += [_text(at(x, 1)[0], bottom + 20, f"{x:g}", anchor="middle") for x in xs]
    drawn.append(_text((left + right) / 2, bottom + 40, across, anchor="middle"))
    colors = iter(LINES * len(series))
    ends = []
    for name, points in series:
        color = OURS if is_ours(name) else next(colors)
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in points))
        drawn.append(f'<path d="M{path}" fill="none" stroke="{color}" {_stroke(name)}/>')
        ends.append((at(*points[-1])[1], name, color))
    for height, name, color in _apart(sorted(ends)):
        drawn.append(_text(right + 10, height + 4, name, color=color))
    return _picture(title, bottom + 52, drawn)


def _stroke(name: str) -> str:
    if not is_ours(name):
        return 'stroke-width="1.7"'
    return 'stroke-width="3"' + (' stroke-dasharray="7 3"' if "," in name else "")  # a variant, of the same color


def _apart(ends: Iterable[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Names that do not touch: from the top, each at least a line below the one before it."""
    placed: list[tuple[float, str, str]] = []
    for height, name, color in ends:
        lowest = placed[-1][0] + 17 if placed else height
        placed.append((max(height, lowest), name, color))
    # Those that were pushed below the plot take the rest along upwards.
    below = placed[-1][0] - (TOP + PLOT)
    return [(height - max(0.0, below), name, color) for height, name, color in placed]


def _decades(values: Sequence[float]) -> tuple[int, int]:
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1


def _part(value: float, least: float, most: float) -> float:
    return math.log(value / least) / math.log(most / least) if most > least else 0.5


def _text(x: float, y: float, text: str, *, anchor: str = "start", color: str = GREY) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def _picture(title: str, height: int, drawn: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    style = 'font-family="system-ui, sans-serif" font-size="13" role="img"'
    heading = f'<g font-size="16">{_text(WIDTH / 2, 22, title, anchor="middle")}</g>'
    return "\n".join([f"{head} {style}>", f"<title>{escape(title)}</title>", heading, *drawn, "</svg>"]) + "\n"
