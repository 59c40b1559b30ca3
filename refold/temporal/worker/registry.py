"""Which skills a worker serves: from modules, classes and tables to workflow classes, checked once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import skill_id
from refold.core.errors import DefinitionError, UnknownSkill
from refold.temporal.worker.workflow import SkillWorkflow


def workflows_of(authors: Sequence[Any]) -> list[type[SkillWorkflow]]:
    """The workflow classes behind skills, tables, workflow classes, or modules that hold them.

    Raises:
        DefinitionError: A skill has no `… = workflow_for(…)` in its module, or two skills share an id.
    """
    found: dict[str, type[SkillWorkflow]] = {}
    for author in authors:
        for cls in _classes(author):
            id = cls.type_name
            if id in found and found[id] is not cls:
                other = found[id]
                raise DefinitionError(
                    id, [f"both {other.__module__}.{other.__name__} and {cls.__module__}.{cls.__name__} have this id"]
                )
            _check_importable(cls, id)
            found[id] = cls
    return list(found.values())


def _classes(author: Any) -> list[type[SkillWorkflow]]:
    if isinstance(author, type) and issubclass(author, SkillWorkflow):
        return [author]
    if isinstance(author, ModuleType):
        own = [value for value in vars(author).values() if _is_skill_workflow(value)]
        return [cls for cls in own if cls.__module__ == author.__name__]
    skill = skill_of(author)
    module = sys.modules.get(getattr(author, "__module__", ""), None)
    for value in vars(module).values() if module else ():
        if _is_skill_workflow(value) and value.skill is skill:
            return [value]
    name = getattr(author, "__name__", skill_id(skill))
    raise DefinitionError(
        skill_id(skill), [f"its module makes no workflow of it; add `{name}Workflow = workflow_for({name})` there"]
    )


def _is_skill_workflow(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, SkillWorkflow) and value is not SkillWorkflow


def _check_importable(cls: type[SkillWorkflow], id: str) -> None:
    # The sandbox imports the class by module and name.
    if getattr(sys.modules.get(cls.__module__), cls.__name__, None) is not cls:
        raise DefinitionError(
            id,
            [
                (
                    f"its workflow is not {cls.__module__}.{cls.__name__}; at module level, assign it to that name "
                    "(`... = workflow_for(...)`), or give workflow_for the name it has (`name=...`)"
                )
            ],
        )


@workflow.defn(dynamic=True, sandboxed=False)
class UnknownSkillWorkflow:
    """Takes every type that nobody serves, and fails it at once: without it the task would hang.

    Attributes:
        known: The skills that this process serves, by task queue.
    """

    known: ClassVar[dict[str, tuple[str, ...]]] = {}

    @workflow.run
    async def run(self, _: Sequence[RawValue]) -> None:
        """Fail, naming what is served."""
        info = workflow.info()
        known = self.known.get(info.task_queue, ())
        error = UnknownSkill(info.workflow_type, known)
        raise ApplicationError(str(error), list(known), type=UnknownSkill.__name__, non_retryable=True)
