"""Which skills a worker serves: from modules, classes and tables to workflow classes, checked once."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from refold.core.authoring.define import listed, skill_of
from refold.core.authoring.reducer import ReducerSkill
from refold.core.authoring.skill import skill_id
from refold.core.errors import DefinitionError
from refold.core.steps.machine import StepMachine
from refold.engine import UnknownSkill
from refold.temporal.worker.task.define import workflow_name
from refold.temporal.worker.task.workflow import SkillWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason why a worker does not start.

    Attributes:
        what: `skill`, `tool` or `MCP server`.
        name: The skill's id, or the name of the tool or server.
        problem: What is wrong, and how to mend it.
        about: The class, function or compiled skill concerned.
        module: The name of the module that holds `about`.
        line: The line in that module, if known.
    """

    what: str = "skill"
    name: str
    problem: str
    about: Any
    module: str
    line: int | None = None


def refuse(found: Sequence[Refusal]) -> None:
    """Raise all refusals as one error; return if there are none.

    Raises:
        DefinitionError: There is at least one refusal.
    """
    subjects = {(one.what, one.name) for one in found}
    if len(subjects) == 1:
        ((what, name),) = subjects
        raise DefinitionError(name, [one.problem for one in found], what=what)
    if found:
        listed = [f"{one.what} {one.name!r}: {one.problem}" for one in found]
        raise DefinitionError("worker", listed, what="application")


def workflows_of(authors: Sequence[Any]) -> list[type[SkillWorkflow]]:
    """The workflow classes behind skills, tables, workflow classes, or modules that hold them.

    Raises:
        DefinitionError: A skill has no `… = workflow_for(…)` in its module, or two skills share an id.
    """
    classes, found = served(authors)
    refuse(found)
    return classes


def served(authors: Sequence[Any]) -> tuple[list[type[SkillWorkflow]], list[Refusal]]:
    """The workflow classes of skills, tables, workflow classes or modules, and the reasons to refuse some of them."""
    found: dict[str, type[SkillWorkflow]] = {}
    refusals: list[Refusal] = []
    for author in listed(authors):
        for cls in _classes(author):
            other = found.setdefault(cls.type_name, cls)
            if other is not cls:
                problem = (
                    f"both {other.__module__}.{other.__name__} and {cls.__module__}.{cls.__name__} have this id; give "
                    'one of the skills another, `id="..."`'
                )
                refusals.append(_of(cls, problem))
            refusals.extend(_misnamed(cls))
        refusals.extend(_unserved(author))
    return list(found.values()), list(dict.fromkeys(refusals))


def _of(cls: type[SkillWorkflow], problem: str) -> Refusal:
    return Refusal(name=cls.type_name, problem=problem, about=cls, module=cls.__module__)


def _classes(author: Any) -> list[type[SkillWorkflow]]:
    if isinstance(author, type) and issubclass(author, SkillWorkflow):
        return [author]
    if isinstance(author, ModuleType):
        own = [value for value in vars(author).values() if _is_skill_workflow(value)]
        return [cls for cls in dict.fromkeys(own) if cls.__module__ == author.__name__]
    skill = skill_of(author)
    module = sys.modules.get(getattr(author, "__module__", ""), None)
    made = [value for value in vars(module).values() if _is_skill_workflow(value)] if module else []
    return [cls for cls in made if cls.skill is skill][:1]


def _is_skill_workflow(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, SkillWorkflow) and value is not SkillWorkflow


def _misnamed(cls: type[SkillWorkflow]) -> Iterator[Refusal]:
    # The sandbox imports the class by module and name.
    attributes = vars(sys.modules.get(cls.__module__, object))
    if attributes.get(cls.__name__) is cls:
        return
    has = next((name for name, value in attributes.items() if value is cls), None)
    way_out = f"assign it to that name at module level, `{cls.__name__} = workflow_for(...)`"
    if has is not None:
        way_out = f"it is assigned to {has}: {way_out}, or write `{has} = workflow_for(..., name={has!r})`"
    yield _of(cls, f"its workflow is not {cls.__module__}.{cls.__name__}; {way_out}")


def _unserved(author: Any) -> Iterator[Refusal]:
    """Refusals of skills without a workflow: the given skill, or the skills that the given module defines."""
    if isinstance(author, ModuleType):
        made = {id(cls.skill) for cls in SkillWorkflow.__subclasses__()}
        own = [(name, value) for name, value in vars(author).items() if _is_skill_of(author, value)]
        missing = {id(skill_of(value)): (name, value) for name, value in own if id(skill_of(value)) not in made}
        for name, value in missing.values():
            yield _without_workflow(name, value, author.__name__)
    elif not _classes(author):
        yield _without_workflow(getattr(author, "__name__", ""), author, getattr(author, "__module__", ""))


def _is_skill_of(module: ModuleType, value: Any) -> bool:
    if isinstance(value, type):
        return "__refold_skill__" in vars(value) and value.__module__ == module.__name__
    return isinstance(value, StepMachine | ReducerSkill)


def _without_workflow(name: str, author: Any, module: str) -> Refusal:
    id = skill_id(skill_of(author))
    problem = f"its module makes no workflow of it; add `{workflow_name(author)} = workflow_for({name or '...'})` there"
    return Refusal(name=id, problem=problem, about=author, module=module)


UNSERVED_S = 3600.0
"""For how long, in seconds, a task that no worker has begun is left to others before it fails."""

MOST_UNSERVED = 10_000
"""How many runs of unknown skills a process remembers; those seen first are forgotten, and count from anew."""


class LeftToOthers(Exception):
    """Fails a workflow task, so that the server gives the task to another worker."""


@workflow.defn(dynamic=True, sandboxed=False)
class UnknownSkillWorkflow:
    """The dynamic workflow: leaves a task of an unknown skill to other workers. If none of them begins the task, it
    fails an hour after a worker first saw it. One that was begun never does: its workers may come back.

    Attributes:
        known: The skills that this process serves, by task queue.
        seen: When this process first saw a run of an unknown skill, by run id.
    """

    known: ClassVar[dict[str, tuple[str, ...]]] = {}
    # Neither the run's own start, which may be long before a worker of any kind was there, nor the SDK's `start_time`,
    # which is that of this attempt: the SDK forgets a run whose workflow task fails.
    seen: ClassVar[OrderedDict[str, datetime]] = OrderedDict()

    @workflow.run
    async def run(self, _: Sequence[RawValue]) -> None:
        """Fail the workflow task, or at last the workflow, with a message that names the served skills."""
        info = workflow.info()
        known = self.known.get(info.task_queue, ())
        error = UnknownSkill(info.workflow_type, known)
        refusal = ApplicationError(str(error), list(known), type=UnknownSkill.__name__, non_retryable=True)
        begun = workflow.unsafe.is_replaying() or info.continued_run_id is not None
        if begun or self._seen_for_s(info.run_id) < UNSERVED_S:
            raise LeftToOthers(f"{error}; the task is left to a worker that knows it") from refusal
        raise refusal

    def _seen_for_s(self, run_id: str) -> float:
        since = self.seen.setdefault(run_id, workflow.now())
        if len(self.seen) > MOST_UNSERVED:
            self.seen.popitem(last=False)
        return (workflow.now() - since).total_seconds()
