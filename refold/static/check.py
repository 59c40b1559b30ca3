"""What is wrong with the skills of a module: definition errors, and code that is not pure."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from refold.core.steps.machine import StepMachine
from refold.static.code.loaded import loaded_module, loaded_tool
from refold.static.code.module import Module, Reach, dotted, parse, top_level
from refold.static.code.sources import Source, text_of
from refold.static.code.units import replaced_steps, skills_in, units
from refold.static.definitions import definition_errors, on_path
from refold.static.finding import Finding, shown
from refold.static.parts import Parts, parts_of
from refold.static.rules.awaits import misused
from refold.static.rules.fits import known_of, unfit
from refold.static.rules.gotos import misdirected
from refold.static.rules.methods import misnamed
from refold.static.rules.purity import ToolName, impure
from refold.static.rules.results import misread

RULES = (
    "definition", "import", "syntax", "clock", "random", "io", "concurrency", "tool", "shared",
    "not-awaited", "await", "return", "result", "goto", "call", "expect", "gate", "worker",
)  # fmt: skip
"""Every rule, as findings name them."""

NOT_DECODED = (
    "Python cannot decode this file; save it as UTF-8, or name its encoding in the first line: "
    "`# -*- coding: latin-1 -*-`"
)

_IGNORED = re.compile(r"#\s*refold:\s*ignore(?:\[([\w\s,-]*)\])?")


def check(
    sources: Iterable[Source], *, beside: Iterable[Source] = (), servers: Collection[str] | None = None
) -> list[Finding]:
    """All findings in these files, ordered by file and line. Imports the files.

    If a file cannot be imported, references between the files are not checked, since its skills and tools would count
    as missing; the reason is among the findings, also where that file is one of `beside`.

    Args:
        sources: The files to check.
        beside: More files of the application, whose skills and tools count as registered; they are not checked, but for
            their import.
        servers: The names of the application's MCP servers; None if they are not known.
    """
    sources = list(sources)
    files = {source.file.resolve() for source in sources}
    others = [source for source in beside if source.file.resolve() not in files]
    files |= {source.file.resolve() for source in others}
    found = [one for source in sources for one in _of_one(source, files)]
    parts = parts_in([*sources, *others])
    if parts is not None:
        return in_order([*found, *_of_all(sources, parts, servers)])
    found += [one for source in others for one in definition_errors(source, files)]
    if not found:  # files that import each other: each has its reason in another
        found += [one for source in (*sources, *others) for one in definition_errors(source)]
    return in_order(found)


def in_order(found: Iterable[Finding]) -> list[Finding]:
    """Findings by file and line, each once."""
    return sorted(set(found), key=lambda one: (one.file, one.line, one.column, one.rule, one.message))


def parts_in(sources: Iterable[Source]) -> Parts | None:
    """The skills and tools of files; None where one cannot be imported."""
    sources = list(sources)
    with on_path(*(source.root for source in sources)):
        try:
            return parts_of([importlib.import_module(source.name) for source in sources])
        except (Exception, SystemExit):  # noqa: BLE001 - the failure is reported as a finding
            return None


def _of_one(source: Source, files: Collection[Path]) -> Iterator[Finding]:
    """Findings that need only this file."""
    defined = definition_errors(source, files)
    try:
        text = text_of(source.file)
    except (SyntaxError, UnicodeDecodeError) as error:
        yield Finding(file=shown(source.file), line=1, column=1, rule="syntax", message=f"{NOT_DECODED} ({error})")
        return
    impurities = check_source(text, shown(source.file), source.name, reach=loaded_module, tool_name=loaded_tool)
    tools = any(one.rule == "tool" for one in impurities)
    unparsed = any(one.rule == "syntax" for one in impurities)
    yield from impurities
    for one in defined:
        # The definition error for a tool called directly has no line, so the finding from the source replaces it.
        if not (tools and "directly; ask for it" in one.message) and not (unparsed and one.rule == "import"):
            yield one


def _of_all(sources: list[Source], parts: Parts, servers: Collection[str] | None) -> Iterator[Finding]:
    """Findings where the code refers to something that the application lacks."""
    known = known_of(parts, servers)
    names = {source.name for source in sources}
    modules = [module for name in names if (module := loaded_module(name)) is not None]
    found = [
        (unit.module, one) for module in modules for unit in units(module, loaded_module) for one in unfit(unit, known)
    ]
    machines = [skill for skill in parts.skills.values() if isinstance(skill, StepMachine)]
    steps = [one for machine in machines for one in misdirected(machine, loaded_module)]
    by_file = {module.file: module for module in modules}
    found += [(by_file[one.file], one) for one in steps if one.file in by_file]
    return (one for module, one in found if not _ignored(module, one))


def check_source(
    text: str,
    file: str = "<source>",
    name: str = "module",
    *,
    reach: Reach = lambda _: None,
    tool_name: ToolName = lambda _: None,
) -> list[Finding]:
    """Findings from a module's source alone; nothing is imported or run.

    Args:
        text: The source.
        file: The file name for the findings.
        name: The module's dotted name.
        reach: Finds the source of another module, whose helpers are then checked too.
        tool_name: Finds the name of a tool that a loaded module defines.
    """
    try:
        module = parse(text, file, name)
    except (SyntaxError, ValueError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        message = f"this is no Python: {getattr(error, 'msg', error)}"
        return [Finding(file=file, line=line, column=max(column, 1), rule="syntax", message=message)]
    found = {(one.file, one.line, one.rule): one for one in _replaced(module)}
    for one in _printed(module, reach):
        if not _ignored(module, one):
            found[one.file, one.line, one.rule] = one
    for unit in units(module, reach):
        for one in (*impure(unit, reach, tool_name), *misused(unit, reach), *misread(unit), *misnamed(unit)):
            if not _ignored(unit.module, one):
                found.setdefault((one.file, one.line, one.rule), one)
    return sorted(found.values(), key=lambda one: (one.file, one.line, one.column))


def _ignored(module: Module, finding: Finding) -> bool:
    marked = _IGNORED.search(module.lines[finding.line - 1])
    if marked is None:
        return False
    return marked[1] is None or finding.rule in re.split(r"[\s,]+", marked[1])


def _replaced(module: Module) -> Iterator[Finding]:
    """Findings for steps of a class of which Python keeps the last alone."""
    for unit in replaced_steps(module):
        text = f"`{unit.where}` replaces the step of the same name above it: give one of them another name"
        yield Finding(file=module.file, line=unit.node.lineno, column=1, rule="definition", message=text)


def _printed(module: Module, reach: Reach) -> Iterator[Finding]:
    """Findings for calls of `print` that run when a skill's module is imported."""
    if not skills_in(module, reach):
        return
    for statement in top_level([one for one in module.tree.body if not _is_main(one)]):
        match statement:
            case ast.Expr(value=ast.Call(func=func)) if dotted(func, module.names) == "builtins.print":
                text = (
                    "the module prints when it is imported, and a worker imports it again for its tasks: leave the "
                    "print out, or put it in worker.py"
                )
                yield Finding(file=module.file, line=statement.lineno, column=1, rule="io", message=text)
            case _:
                pass


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)
