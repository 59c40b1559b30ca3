"""What is wrong with the skills of a module: definition errors, and code that is not pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from refold.static.awaits import misused
from refold.static.definitions import definition_errors
from refold.static.finding import Finding
from refold.static.loaded import loaded_module, loaded_tool
from refold.static.module import Module, Reach, parse
from refold.static.purity import ToolName, impure
from refold.static.sources import Source
from refold.static.units import units

RULES = (
    "definition", "import", "syntax", "clock", "random", "io", "concurrency", "tool", "shared",
    "not-awaited", "await", "return",
)  # fmt: skip
"""Every rule, as findings name them."""

_IGNORED = re.compile(r"#\s*refold:\s*ignore(?:\[([\w\s,-]*)\])?")


def check(sources: Iterable[Source]) -> list[Finding]:
    """Everything that is wrong in these files, by file and line. They are imported."""
    found: set[Finding] = set()
    for source in sources:
        defined = definition_errors(source)
        text = source.file.read_text(encoding="utf-8", errors="replace")
        impurities = check_source(text, str(source.file), source.name, reach=loaded_module, tool_name=loaded_tool)
        tools = any(one.rule == "tool" for one in impurities)
        unparsed = any(one.rule == "syntax" for one in impurities)
        found.update(impurities)
        found.update(
            one
            for one in defined
            # The definition tells of a tool called directly too, but not in which line.
            if not (tools and "directly; ask for it" in one.message) and not (unparsed and one.rule == "import")
        )
    return sorted(found, key=lambda one: (one.file, one.line, one.column, one.rule, one.message))


def check_source(
    text: str,
    file: str = "<source>",
    name: str = "module",
    *,
    reach: Reach = lambda _: None,
    tool_name: ToolName = lambda _: None,
) -> list[Finding]:
    """What can be told from a module's source alone; nothing is imported or run.

    Args:
        text: The source.
        file: Its name, for the findings.
        name: The module's dotted name.
        reach: Finds the source of other modules, whose helpers are then followed.
        tool_name: Tells tools that only a loaded module knows.
    """
    try:
        module = parse(text, file, name)
    except (SyntaxError, ValueError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        message = f"this is no Python: {getattr(error, 'msg', error)}"
        return [Finding(file=file, line=line, column=max(column, 1), rule="syntax", message=message)]
    found: dict[tuple[str, int, str], Finding] = {}
    for unit in units(module, reach):
        for one in (*impure(unit, reach, tool_name), *misused(unit, reach)):
            if not _ignored(unit.module, one):
                found.setdefault((one.file, one.line, one.rule), one)
    return sorted(found.values(), key=lambda one: (one.file, one.line, one.column))


def _ignored(module: Module, finding: Finding) -> bool:
    marked = _IGNORED.search(module.lines[finding.line - 1])
    if marked is None:
        return False
    return marked[1] is None or finding.rule in re.split(r"[\s,]+", marked[1])
