"""`refold graph` and `refold check`: analyse skills without running them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold import temporal
from refold.cli.application import application, imported, quiet_stdout, sources_of, usual_sources
from refold.cli.errors import DONE, TASK_FAILED, CallError
from refold.cli.verb import Call, add
from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import Skill, skill_id
from refold.engine import UnknownSkill
from refold.words.text import counted

if TYPE_CHECKING:  # what only these two verbs need is loaded when one is called
    from refold.static import Finding, Source

Modules = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODULE",
        help="Modules, files or folders; else `workflows` and `activities` of this folder.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (graph, check):
        add(app, run, connects=False)


def graph(
    call: Call,
    skill: Annotated[
        str, typer.Argument(metavar="SKILL", help="A skill's id, or module:Name of its class.", show_default=False)
    ],
    modules: Annotated[
        list[str] | None,
        typer.Option("--module", help="The module to search for the id; else `workflows` of this folder. Repeatable."),
    ] = None,
) -> None:
    """Print a skill as a Mermaid state diagram.

    The diagram shows the steps or states, what leads to each (a goto, an answer, a gate that is approved, denied or
    timed out, a failure that is caught), the commands they issue, and how the task can end. It is read from the code,
    so it shows only what the code names literally. With --json, `{"skill": …, "mermaid": …}`.
    """
    from refold.static import graph as graph_of

    found = _by_path(skill) if ":" in skill else _by_id(skill, modules or [])
    mermaid = graph_of(found)
    if call.out.json:
        call.out.value({"skill": skill_id(found), "mermaid": mermaid})
    else:
        call.out.say(*mermaid.splitlines())


def check(
    call: Call,
    modules: Modules = None,
    mcp: Annotated[
        Path | None,
        typer.Option("--mcp", metavar="FILE", help="The MCP servers that skills use. Else the file in REFOLD_MCP."),
    ] = None,
) -> int:
    """Find mistakes in skills and tools.

    Reports what a worker refuses when it starts (a skill without a workflow, two skills or tools of one name, a tool
    that is not registered, a module that the sandbox cannot load), what would fail a task (a step or a child skill
    that does not exist, a method that ctx does not have, arguments that a step or tool does not accept, `expect=` that
    names no type, a gate at which no one may decide, a call of ctx that is not awaited, a step that returns no
    transition), and what would differ on replay: uses of the clock, random numbers, input and output, threads, tools
    called directly. A line that ends in `# refold: ignore[rule]` is skipped. The modules are imported.

    Exits 1 if there are findings.
    """
    from refold.static import check as check_sources
    from refold.static.check import in_order, parts_in

    sources, beside = sources_of(modules or []), usual_sources()
    with quiet_stdout():
        servers, refused = temporal.known_servers(mcp)
        findings = check_sources(sources, beside=beside, servers=servers)
        refused += _refused(sources, beside, servers)
        findings = in_order([*findings, *map(_finding, refused)])
        parts = parts_in(sources)
    for one in findings:
        if call.out.json:
            call.out.value(one)
        else:
            call.out.say(f"{one.file}:{one.line}:{one.column}: {one.rule}: {one.message}")
    count = counted(len(findings), "finding") if findings else "nothing found"
    empty = not findings and parts is not None and not (parts.skills or parts.tools)
    lacks = "" if not empty else ", where no skill and no tool is defined at the top level"
    call.out.note(f"{count} in {counted(len(sources), 'file')}{lacks}")
    return TASK_FAILED if findings else DONE


def _refused(sources: list[Source], beside: list[Source], servers: list[str] | None) -> list[temporal.Refusal]:
    """What a worker of the whole application refuses when it starts, as far as it is about these files."""
    from refold.static.check import parts_in
    from refold.static.definitions import on_path

    parts = parts_in([*sources, *beside])
    if parts is None:
        return []
    own = {source.name for source in sources}
    with on_path(*(source.root for source in (*sources, *beside))):
        found = temporal.refusals_at_start(parts.modules, parts.tools, servers=servers)
    return [one for one in found if one.module in own]


def _finding(one: temporal.Refusal) -> Finding:
    from refold.static import Finding
    from refold.static.code.loaded import place_of

    file, line = place_of(one.about, one.module)
    message = f"{one.what} {one.name!r}: {one.problem}"
    return Finding(file=file, line=one.line or line, column=1, rule="worker", message=message)


def _by_id(id: str, modules: list[str]) -> Skill:
    if id.endswith(".py"):
        raise CallError(f"{id!r} is a file; name a skill by its id, or as {Path(id).stem}:NameOfItsClass")
    skills = application(modules).skills
    if id not in skills:
        raise UnknownSkill(id, list(skills))
    return skills[id]


def _by_path(path: str) -> Skill:
    name, _, attribute = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    module = imported(name, f"module {name!r}")
    if not hasattr(module, attribute):
        raise CallError(f"module {name!r} has no {attribute!r}")
    return skill_of(getattr(module, attribute))
