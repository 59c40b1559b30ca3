"""The application: the skills and tools in the modules of the current folder."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from refold.cli.errors import CallError
from refold.core.authoring.define import skill_of
from refold.core.authoring.reducer import ReducerSkill
from refold.core.authoring.skill import Skill, skill_id
from refold.core.authoring.tool import tool_spec
from refold.core.errors import RefoldError
from refold.core.steps.machine import StepMachine
from refold.static import Source, find_sources

USUAL = ("workflows", "activities")
"""The modules that are looked at where none are named."""


@dataclass(frozen=True, slots=True)
class Application:
    """What modules hold.

    Attributes:
        modules: In the order they were named, packages before what is in them.
        skills: By id.
        tools: The functions declared with `@tool`.
    """

    modules: tuple[ModuleType, ...]
    skills: dict[str, Skill]
    tools: tuple[Callable[..., Any], ...]


def sources_of(names: Sequence[str]) -> list[Source]:
    """The files of modules, files and folders by name; of the usual ones where none are named.

    Raises:
        NotFound: There is no such thing.
        CallError: None are named, and none of the usual ones is here.
    """
    here = Path.cwd()
    if not names:
        names = [name for name in USUAL if (here / name).is_dir() or (here / f"{name}.py").is_file()]
        if not names:
            raise CallError(
                f"no module {' or '.join(USUAL)} in {here}; go to your application's folder, or name its modules"
            )
    found = [source for name in names for source in find_sources(name, [here, *map(Path, sys.path)])]
    return list({source.file.resolve(): source for source in found}.values())


def application(names: Sequence[str]) -> Application:
    """Import modules and collect their skills and tools.

    Args:
        names: As `sources_of` takes them.

    Raises:
        NotFound, CallError: As `sources_of`; or a module cannot be imported, or two skills share an id.
        DefinitionError: A skill or tool is written wrongly.
    """
    modules = tuple(_imported(source) for source in sources_of(names))
    skills: dict[str, Skill] = {}
    tools: dict[int, Callable[..., Any]] = {}
    for module in modules:
        for value in list(vars(module).values()):
            if (skill := _skill(value)) is not None:
                if skills.setdefault(skill_id(skill), skill) is not skill:
                    raise CallError(f"two skills have the id {skill_id(skill)!r}, the second in {module.__name__}")
            elif isinstance(value, list | tuple):  # tools that are made, and listed: TOOLS = [...]
                tools |= {id(one): one for one in value if tool_spec(one) is not None}
            elif callable(value) and tool_spec(value) is not None:
                tools[id(value)] = value
    return Application(modules, skills, tuple(tools.values()))


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """What imported modules print is talk, not a result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _imported(source: Source) -> ModuleType:
    if str(source.root) not in sys.path:
        sys.path.insert(0, str(source.root))
    try:
        with quiet_stdout():
            return importlib.import_module(source.name)
    except RefoldError:
        raise
    except Exception as error:
        raise CallError(f"{source.file} cannot be imported: {type(error).__name__}: {error}") from error


def _skill(value: Any) -> Skill | None:
    if isinstance(value, StepMachine | ReducerSkill):
        return value
    return skill_of(value) if isinstance(value, type) and "__refold_skill__" in vars(value) else None
