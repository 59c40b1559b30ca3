"""The skills and tools that an application's modules hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from refold.core.authoring.define import skill_of
from refold.core.authoring.reducer import ReducerSkill
from refold.core.authoring.skill import Skill, skill_id
from refold.core.authoring.tool import tool_spec
from refold.core.steps.machine import StepMachine

TOOLS = "TOOLS"
"""The usual name of a module's list of tools. Every function in a list of this name is meant to be a tool."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What modules hold.

    Attributes:
        modules: In the order they were named, packages before what is in them.
        skills: By id; the first of each id.
        tools: The functions declared with `@tool`, and functions without it in a list named `TOOLS`.
        twice: Skills whose id an earlier skill has, with the module that names them.
        renamed: Skills by each former id for which a module makes a workflow, `workflow_for(…, alias=)`.
    """

    modules: tuple[ModuleType, ...]
    skills: dict[str, Skill]
    tools: tuple[Callable[..., Any], ...]
    twice: tuple[tuple[Skill, ModuleType], ...] = ()
    renamed: Mapping[str, Skill] = field(default_factory=dict)

    @property
    def by_any_id(self) -> dict[str, Skill]:
        """The skills by their ids and their former ids: what a recorded task may name."""
        return {**self.renamed, **self.skills}


def parts_of(modules: Iterable[ModuleType]) -> Parts:
    """Collect the skills and tools that modules name at their top level."""
    modules = tuple(modules)
    skills: dict[str, Skill] = {}
    twice: dict[int, tuple[Skill, ModuleType]] = {}
    tools: dict[int, Callable[..., Any]] = {}
    renamed: dict[str, Skill] = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            if (skill := _skill(value)) is not None:
                if skills.setdefault(skill_id(skill), skill) is not skill:
                    twice.setdefault(id(skill), (skill, module))
            elif _is_workflow(value):
                renamed.setdefault(value.type_name, value.skill)
            elif isinstance(value, list | tuple):
                tools |= {id(one): one for one in _listed(name, value)}
            elif callable(value) and tool_spec(value) is not None:
                tools[id(value)] = value
    former = {id: skill for id, skill in renamed.items() if id != skill_id(skill)}
    return Parts(modules, skills, tuple(tools.values()), tuple(twice.values()), former)


def _listed(name: str, values: list[Any] | tuple[Any, ...]) -> list[Any]:
    """The tools of a list; of one that is named `TOOLS`, also the functions that lack the declaration."""
    return [one for one in values if tool_spec(one) is not None or (name == TOOLS and inspect.isroutine(one))]


def _is_workflow(value: Any) -> bool:
    """Whether `workflow_for` made it; without an import of Temporal's packages, which read-only verbs do without."""
    if not isinstance(value, type):
        return False
    skill, name = vars(value).get("skill"), vars(value).get("type_name")
    return isinstance(skill, StepMachine | ReducerSkill) and isinstance(name, str)


def _skill(value: Any) -> Skill | None:
    if isinstance(value, StepMachine | ReducerSkill):
        return value
    return skill_of(value) if isinstance(value, type) and "__refold_skill__" in vars(value) else None
