"""The reasons why a worker refuses to start. `refold check` calls the same function, so both find the same reasons.

| refused | by |
| --- | --- |
| a skill without a workflow, a workflow of another name, two skills of one id | `registry.served` |
| a tool without declaration or with types that JSON cannot express, two tools of one name | `effects.tools.tools_of` |
| a tool whose `undo` is missing; an agent's tool, skill or MCP server that is missing | `_missing` |
| a module that Temporal's sandbox cannot load | `_unloadable` |
| an MCP server with a wrong name or a wrong entry in its file | `effects.mcp.servers.servers_in` |
"""

from __future__ import annotations

import asyncio
import keyword
import logging
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import RestrictedWorkflowAccessError

from refold.core.authoring.skill import skill_id
from refold.core.authoring.tool import tool_spec
from refold.core.errors import DefinitionError
from refold.core.steps.machine import StepMachine
from refold.effects.mcp.servers import ENV, servers_in
from refold.effects.tools import tools_of
from refold.engine.arguments import takes
from refold.static.failed_import import AS_A_SCRIPT
from refold.temporal.worker.registry import Refusal, served
from refold.temporal.worker.sandboxed.sandbox import forbidden, sandbox
from refold.temporal.worker.task.define import DEFINITION
from refold.temporal.worker.task.workflow import SkillWorkflow

_SANDBOX_LOG = logging.getLogger("temporalio.worker.workflow_sandbox._restrictions")


def refusals(
    skills: Sequence[Any],
    tools: Sequence[Callable[..., Any]],
    *,
    servers: Collection[str] | None,
    runner: WorkflowRunner,
) -> list[Refusal]:
    """Every reason why a worker with these skills and tools does not start. Needs a running event loop.

    Args:
        skills: Skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.
        servers: The names of the MCP servers; None if they are not known, so that none counts as missing.
        runner: Loads the workflows.
    """
    classes, found = served(skills)
    if not found:  # a workflow of another name cannot be loaded
        found.extend(_unloadable(classes, runner))
    return [*found, *_undeclared(tools), *_missing(classes, tools, servers)]


@takes()
def refusals_at_start(
    skills: Sequence[Any], tools: Sequence[Callable[..., Any]], *, servers: Collection[str] | None = None
) -> list[Refusal]:
    """`refusals` with a sandbox and an event loop of its own, for programs that run no worker."""

    async def start() -> list[Refusal]:
        return refusals(skills, tools, servers=servers, runner=sandbox(served(skills)[0], tools))

    return asyncio.run(start())


@takes()
def known_servers(file: Path | None = None) -> tuple[list[str] | None, list[Refusal]]:
    """The names of the MCP servers (None without a file of servers), and why a worker refuses the file.

    Args:
        file: The file of servers; None takes the one that `REFOLD_MCP` names.

    Raises:
        DefinitionError: The file does not exist.
    """
    path = file or (Path(os.environ[ENV]) if os.environ.get(ENV) else None)
    if path is None:
        return None, []
    try:
        return [server.name for server in servers_in(path)], []
    except DefinitionError as error:
        if not path.is_file():
            raise
        name, problem = error.skill.partition(" (")[0], "; ".join(error.problems)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        line = next((number for number, text in enumerate(lines, 1) if f'"{name}"' in text), 1)
        return None, [Refusal(what="MCP server", name=name, problem=problem, about=path, module="", line=line)]


def _undeclared(tools: Sequence[Callable[..., Any]]) -> Iterator[Refusal]:
    """Refusals of tools that no worker can register, one for each tool."""
    first: dict[str, Callable[..., Any]] = {}
    for function in tools:
        spec = tool_spec(function)
        other = first.setdefault(function.__name__ if spec is None else spec.name, function)
        try:
            tools_of([function] if other is function else [other, function])
        except DefinitionError as error:
            module = getattr(function, "__module__", "")
            yield Refusal(
                what="tool", name=error.skill, problem="; ".join(error.problems), about=function, module=module
            )


def _missing(
    classes: Sequence[type[SkillWorkflow]], tools: Sequence[Callable[..., Any]], servers: Collection[str] | None
) -> Iterator[Refusal]:
    """Refusals of tools, skills and MCP servers that registered ones use but that are not registered themselves."""
    registered = {spec.name: tool for tool in tools if (spec := tool_spec(tool)) is not None}
    for name, tool in registered.items():
        spec = tool_spec(tool)
        if spec is not None and spec.undo is not None and spec.undo.name not in registered:
            problem = (
                f"its undo, the tool {spec.undo.name!r}, is not registered, so that nothing could undo the effect; "
                f"register {spec.undo.name} beside it"
            )
            yield Refusal(what="tool", name=name, problem=problem, about=tool, module=tool.__module__)
    known = {"tool": sorted(registered), "skill": sorted(cls.type_name for cls in classes)}
    known["MCP server"] = sorted(servers or ())
    for cls in classes:
        made_with = cls.skill.made_with if isinstance(cls.skill, StepMachine) else ()
        for kind, name in dict.fromkeys((one.kind, one.name) for one in made_with):
            if name in known[kind] or (kind == "MCP server" and servers is None):
                continue
            there = ", ".join(known[kind]) or "none"
            problem = f"it is made with the {kind} {name!r}, which is not registered; registered: {there}"
            yield Refusal(name=skill_id(cls.skill), problem=problem, about=cls.skill, module=cls.__module__)


def _unloadable(classes: Sequence[type[SkillWorkflow]], runner: WorkflowRunner) -> Iterator[Refusal]:
    """Refusals of workflows whose module cannot be imported inside the sandbox."""
    for cls in classes:
        definition = getattr(cls, DEFINITION, None)
        if definition is None:
            continue  # a release of the SDK that keeps it elsewhere: its worker finds such a module itself
        _SANDBOX_LOG.disabled = True  # the SDK would log the same error
        try:
            runner.prepare_workflow(definition)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a module's top level may raise anything
            yield Refusal(
                name=cls.type_name,
                problem=_why_unloadable(error, cls.__module__),
                about=cls,
                module=cls.__module__,
                line=_line_in(error, cls.__module__),
            )
        finally:
            _SANDBOX_LOG.disabled = False


def _why_unloadable(error: BaseException, module: str) -> str:
    if any(not part.isidentifier() or keyword.iskeyword(part) for part in module.split(".")):
        return (
            f"its module is named {module!r}, which no import statement can name: rename the file (letters, digits, _)"
        )
    way_out = (
        "move it to a tool, or to the module of a tool, which the sandbox does not load again; `--no-sandbox` "
        "(`sandboxed=False`) serves it as it is"
    )
    if isinstance(error, RestrictedWorkflowAccessError):
        return (
            f"a worker loads its module again inside Temporal's sandbox, which forbids what the module uses at its "
            f"top level, `{forbidden(error)}`; {way_out}"
        )
    text = " ".join(str(error).split())
    if "running event loop" in text:
        way_out = AS_A_SCRIPT
    return f"a worker cannot load its module inside Temporal's sandbox: {type(error).__name__}: {text}; {way_out}"


def _line_in(error: BaseException, module: str) -> int | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in frames if file and Path(frame.filename) == Path(file)), None)
