"""docs/performance.md: its tables and pictures are those of the recorded run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench.peers import plots
from bench.peers.found import Found, markdown
from bench.peers.setup import ROOT
from bench.peers.table import SIDES

RECORDED = Path(__file__).parent / "recorded.json"
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"

NOTHING = {"missing": "Every side ran in every round.", "repeated": "No effect ran twice where nothing was killed."}
"""What stands in place of an empty list."""

_PART = re.compile(r"(<!-- (\w+): `python -m bench peers` writes it -->\n).*?(<!-- end -->)", re.DOTALL)


def recorded() -> Found:
    """The run that the page shows."""
    return Found(json.loads(RECORDED.read_text()))


def filled(text: str, found: Found) -> str:
    """The page with the tables of a run."""

    def table(part: re.Match[str]) -> str:
        before, name, after = part.groups()
        rows = getattr(found, name)()
        if name in NOTHING:
            shown = "\n".join(f"- {side}: {why}" for side, why in rows) or NOTHING[name]
        else:
            shown = markdown(rows)
        return f"{before}\n{shown}\n\n{after}"

    return _PART.sub(table, text)


def pictures(found: Found) -> dict[str, str]:
    """Each picture by the name of its file."""
    at_once = found.data["settings"]["at_once"]
    steps = [(_plain(side.name), found.middle(side.key, "alone.step_ms")) for side in found.sides("alone.step_ms")]
    speeds = [(_plain(side.name), found.per_s(side.key)) for side in found.sides("at_once.step_ms")]
    kills = [(_plain(side.name), found.middle(side.key, "kill.done_s")) for side in found.sides("kill.done_s")]
    kept = [
        (_plain(side.name), [(float(steps), of["bytes"] / 1024) for steps, of in lengths.items()])
        for side in SIDES
        if (lengths := found.data["lengths"].get(side.key))
    ]
    at_once_title = f"Steps a second, {at_once} tasks at once (more is better)"
    return {
        "performance-step.svg": plots.bars("Time a step, one task at a time (less is better)", steps, "ms"),
        "performance-at-once.svg": plots.bars(at_once_title, speeds, "/s"),
        "performance-kill.svg": plots.bars("From SIGKILL in an effect to the task's end (less is better)", kills, "s"),
        "performance-bytes.svg": plots.lines("KiB kept of a task", "steps of the task", kept),
    }


def record(found: Found) -> None:
    """Keep a run, and write the page from it."""
    RECORDED.write_text(json.dumps(found.data, indent=1) + "\n")
    write(found)


def write(found: Found) -> None:
    """Write tables and pictures."""
    PAGE.write_text(filled(PAGE.read_text(), found))
    for name, picture in pictures(found).items():
        (PICTURES / name).write_text(picture)


def _plain(name: str) -> str:
    return name.replace("`", "")
