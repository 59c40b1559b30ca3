"""How the workflow class of a skill is made: `workflow_for`, and the name that a class is given.

Temporal wants a class for each workflow type, with `__init__` and `run` of its own; all else is `SkillWorkflow`'s.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from temporalio import workflow

from refold.core.authoring.define import flow_skill, skill_of
from refold.core.authoring.skill import Skill, skill_id, snake
from refold.core.errors import DefinitionError, shown
from refold.temporal.data.wire import TaskResult
from refold.temporal.worker.profile import Profile, of_skill
from refold.temporal.worker.task.workflow import FAILURES, SkillWorkflow

DEFINITION = "__temporal_workflow_definition"  # where the SDK keeps what `workflow.defn` found in a class
_KNOWN_FIELDS = ("name", "cls", "run_fn")
_first_found: dict[str, Any] = {}


def workflow_for(
    author: Any, *, name: str | None = None, alias: str | None = None, recovery: str | Profile | None = None
) -> type[SkillWorkflow]:
    """The Temporal workflow of a skill: `RefundWorkflow = workflow_for(Refund)`, as a module's attribute.

    Args:
        author: The skill's class or table.
        name: The attribute's name; None takes the class's or the table's id with `Workflow` behind.
        alias: A former id of the skill: tasks that were started under it go on. Make one workflow for each, beside
            the one without.
        recovery: How soon a worker that is lost in one of the skill's effects is noticed, and how often the effect is
            dispatched again: `"default"`, `"fast-recovery"`, or a `Profile`. None leaves it to the worker's setting.

    Raises:
        DefinitionError: The skill is written wrongly, stands in `__main__`, which workers cannot import, or `recovery`
            names no profile.
    """
    if isinstance(author, type) and "__refold_skill__" not in vars(author):
        author = flow_skill()(author)  # else neither the command line nor `run_worker` would know the class
    skill = skill_of(author)
    id = skill_id(skill)
    given = {"name": name, "alias": alias}
    wrong = [
        f"{key} is a text or None; got {shown(one)}" for key, one in given.items() if not isinstance(one, str | None)
    ]
    if wrong:
        raise DefinitionError(id, wrong)
    module = str(sys._getframe(1).f_globals.get("__name__", ""))
    if module == "__main__":
        raise DefinitionError(
            id, ["its workflow is made in `__main__`; put the skill in a module that can be imported"]
        )
    return _made(name or workflow_name(author), module, skill, alias or id, of_skill(id, recovery))


def workflow_name(author: Any) -> str:
    """The name of a skill's workflow class, unless `workflow_for` is given another."""
    if isinstance(author, type):
        return f"{author.__name__}Workflow"
    return "".join(part.title() for part in snake(skill_id(skill_of(author))).split("_")) + "Workflow"


def _made(cls_name: str, module: str, skill: Skill, type_name: str, recovery: Profile | None) -> type[SkillWorkflow]:
    # Temporal looks for `__init__` and `run` on the class itself, under its own name and module.
    def __init__(self: SkillWorkflow, *inputs: Any) -> None:
        SkillWorkflow.__init__(self, *inputs)

    async def run(self: SkillWorkflow, *inputs: Any) -> TaskResult:
        return await self._run()

    for function in (__init__, run):
        function.__qualname__ = f"{cls_name}.{function.__name__}"
        function.__module__ = module
        # Real types: with postponed annotations Temporal would look the names up in the skill's module.
        function.__annotations__ = {"inputs": Any, "return": TaskResult if function is run else None}
    fields = {
        "__init__": workflow.init(__init__),
        "run": workflow.run(run),
        "__module__": module,
        "skill": skill,
        "type_name": type_name,
        "recovery": recovery,
    }
    made = type(cls_name, (SkillWorkflow,), {**fields, "__doc__": skill.options.card.description})
    return _defined(made, type_name)


def _defined(made: type[SkillWorkflow], type_name: str) -> type[SkillWorkflow]:
    # `workflow.defn` looks through all members of a class and of its bases. Here they are always the same, and the
    # sandbox makes a skill's class anew for every task, so it looks once.
    found = _first_found.get(DEFINITION)
    if found is None or not all(hasattr(found, name) for name in _KNOWN_FIELDS):
        made = workflow.defn(name=type_name, failure_exception_types=FAILURES)(made)
        _first_found[DEFINITION] = getattr(made, DEFINITION, None)
        return made
    definition = replace(found, name=type_name, cls=made, run_fn=vars(made)["run"])
    for defined in (made, definition.run_fn):
        setattr(defined, DEFINITION, definition)
    return made
